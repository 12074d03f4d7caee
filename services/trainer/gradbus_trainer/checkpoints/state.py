"""The state of a trainer between two steps: taken for a checkpoint, and restored from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradbus.aio.threads import in_run_thread
from gradbus.algorithms import ControllerState
from gradbus.errors import ModelError
from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.objects import ObjectStore
from gradbus.spec import RunSpec
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import CheckpointManifest, Shard, WeightManifest
from gradbus_kernels.weights.digest import weights_digest
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.groups import LoggedGroup
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch, TensorFile
from gradbus_trainer.versions.object_storage import load_tensors
from gradbus_trainer.versions.store_client import StoreClient

_log = get_logger(__name__)
_MASTER = ".master"


@dataclass(slots=True)
class TrainerState:
    """The train loop's progress. All of it is in a checkpoint's manifest."""

    step: int = 0
    frontier: Frontier = field(default_factory=Frontier)
    previous: str = ""
    """Digest of the newest committed manifest."""
    trained: dict[int, str] = field(default_factory=dict)
    """Record digest of each index consumed since `previous`."""
    versions: dict[int, WeightManifest] = field(default_factory=dict)
    """Published versions, by step, that a resume may have to sample with, or to compare samples with."""
    controllers: ControllerState = field(default_factory=dict)
    """What the steps so far have made of the coefficients; see `gradbus.algorithms.controllers`."""

    def add_trained(self, groups: Sequence[LoggedGroup], sampling: DynamicSampling | None = None) -> None:
        """The groups of `step` are trained; the next step begins. `sampling`: of a run that replaces filtered groups."""
        consumed = [(group.entry.index, group.digest) for group in groups]
        if sampling is not None:
            start, extents = self.frontier.below, self.frontier.extents
            extent = sampling.extent(self.step, start, max([start, *extents]), [group.trains for group in groups])
            self.frontier.extents = list(sampling.kept([*extents, extent]))
        self.frontier.add(self.step, consumed)
        self.trained.update(consumed)
        self.step += 1

    def add_version(self, manifest: WeightManifest, spec: RunSpec) -> None:
        """The version is published; the run at its step no longer needs some of those before."""
        self.versions = {step: known for step, known in self.versions.items() if spec.needs_version(step, manifest.step)}
        self.versions[manifest.step] = manifest


async def restore(store: StoreClient, objects: ObjectStore, learner: Learner, scratch: Scratch, spec: RunSpec) -> TrainerState:
    """Brings the learner to the newest checkpoint, or to the run's beginning."""
    response = await store.checkpoint()
    if response is None:
        return await begin(objects, learner, scratch, spec)
    return await restore_from(response.manifest, response.digest, objects, learner, scratch, spec)


async def begin(objects: ObjectStore, learner: Learner, scratch: Scratch, spec: RunSpec) -> TrainerState:
    """Leaves the learner at the base model, or gives it the adapters with which the run begins. Raises ModelError if they are others."""
    model = spec.model
    if model.adapters is not None and model.lineage is not None:
        adapters = await load_tensors(objects, [Shard(digest=model.adapters)], scratch)
        expected = model.lineage.ancestors[0].digest

        def take() -> None:
            if weights_digest(adapters) != expected:
                raise ModelError(f"the adapters {model.adapters} are not {model.source}; fork the run again")
            learner.restore(0, adapters, {})

        await in_run_thread(take, "begin with adapters")  # as in `restore_from`
    return TrainerState()


async def restore_from(
    manifest: CheckpointManifest, digest: str, objects: ObjectStore, learner: Learner, scratch: Scratch, spec: RunSpec
) -> TrainerState:
    """Brings the learner to a checkpoint, whose manifest has this digest."""
    stored = await load_tensors(objects, manifest.optimizer, scratch)
    masters = {name.removesuffix(_MASTER): tensor for name, tensor in stored.items() if name.endswith(_MASTER)}
    optimizer = {name: tensor for name, tensor in stored.items() if not name.endswith(_MASTER)}
    weights = masters or await load_tensors(objects, manifest.weights.shards, scratch)
    # In a thread: copying a large model takes longer than the lease lasts, and the event loop has to renew it.
    await in_run_thread(lambda: learner.restore(manifest.step, weights, optimizer), "restore learner")
    kept = {pinned.step: pinned for pinned in manifest.pinned if spec.needs_version(pinned.step, manifest.step)}
    _log.info("checkpoint_restored", run_id=manifest.run_id, step=manifest.step, digest=manifest.weights.digest)
    return TrainerState(manifest.step, Frontier.from_message(manifest.frontier), digest, {}, kept, dict(manifest.controllers))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a checkpoint, taken between two steps."""

    state: TrainerState
    optimizer: Sequence[TensorFile]
    """Moments by parameter, and the float32 weights as `<name>.master` if versions are published rounded."""

    @classmethod
    def of(cls, state: TrainerState, learner: Learner, scratch: Scratch, rounded: bool = False) -> Snapshot:
        """Writes the tensors that the next step changes, and clears the list of trained groups. Raises StorageError, all unchanged.

        `rounded`: whether versions are, so that the float32 weights are stored too.
        """
        parts = [learner.optimizer_tensors()]
        if rounded:
            parts.append(_masters(learner.weights()))
        files = [scratch.write(part) for part in parts if part]
        frontier = Frontier.from_message(state.frontier.to_message())
        frozen = TrainerState(state.step, frontier, state.previous, state.trained, dict(state.versions), dict(state.controllers))
        state.trained = {}
        return cls(frozen, files)


def _masters(weights: LazyTensors) -> LazyTensors:
    shapes = {f"{name}{_MASTER}": shape for name, shape in weights.shapes.items()}
    return LazyTensors(shapes, lambda name: weights[name.removesuffix(_MASTER)])
