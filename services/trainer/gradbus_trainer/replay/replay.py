"""Trains a run again from its archive: the trainer's own learner and fold, with object storage as the only input and no output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradbus.algorithms import algorithm_of
from gradbus.control.replay import ReplayedStep, ReplayResult
from gradbus.errors import ReplayError
from gradbus.experience.archive import ArchiveReader
from gradbus.experience.stream_ids import segments_path
from gradbus.objects import ObjectStore, materialise
from gradbus.objects.folder import partial_folder
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.models.loading import enough_memory
from gradbus_trainer.checkpoints.state import Snapshot, TrainerState, begin, restore_from
from gradbus_trainer.checkpoints.writer import fingerprint
from gradbus_trainer.fold import Fold
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.learners.registry import Learners
from gradbus_trainer.replay.archived_log import ArchivedLog
from gradbus_trainer.replay.comparison import Comparison
from gradbus_trainer.replay.plan import ReplayPlan
from gradbus_trainer.settings import Settings, TorchrunRank
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.scratch import Scratch

Report = Callable[[ReplayedStep], None]


async def replay(settings: Settings, objects: ObjectStore, plan: ReplayPlan, *, anyway: bool, report: Report) -> ReplayResult:
    """Raises ReplayError at the first difference; also, unless `anyway`, where torch, the CPU or the GPU are others than the run's.

    Raises what opening a learner raises too, and TrainingError.
    """
    spec, run_id = plan.record.spec, plan.record.run_id
    if plan.to > plan.start and not await ArchiveReader(objects, run_id).segments():
        raise ReplayError(
            f"{objects.url} holds no archived group of {run_id} ({segments_path(run_id)} is empty); replay the run once it has a "
            "checkpoint, or restore the folder from a copy"
        )
    folder = await materialise(objects, spec.model.files or {}, settings.cache_dir / "models")
    learners = Learners(settings, TorchrunRank())
    try:
        async with partial_folder(settings.cache_dir / "replay") as files:
            with enough_memory():
                learner = learners.open(folder, spec)
                differences = _checked(plan, anyway=anyway)
                return await _Replay(plan, objects, learner, Scratch(files / "tensors")).run(report, differences)
    finally:
        learners.close()


def _checked(plan: ReplayPlan, *, anyway: bool) -> list[str]:
    """What differs here. Raises ReplayError for it, unless `anyway`."""
    differences = plan.differences(fingerprint(plan.record.spec.trainer.threads))
    if differences and not anyway:
        raise ReplayError(
            f"this process would compute other bits than the trainer of {plan.record.run_id} did: {'; '.join(differences)}; replay where "
            "these are the same, or give --anyway to see whether the digests are equal all the same"
        )
    return differences


class _Replay:
    """The versions of a plan, one after the other, with a learner that has loaded the base model."""

    def __init__(self, plan: ReplayPlan, objects: ObjectStore, learner: Learner, scratch: Scratch) -> None:
        self._plan = plan
        self._objects = objects
        self._learner = learner
        self._scratch = scratch
        self._comparison = Comparison(plan)
        self._dtype = DTYPES[plan.record.spec.version_dtype]

    async def run(self, report: Report, differences: Sequence[str]) -> ReplayResult:
        plan, run_id, spec = self._plan, self._plan.record.run_id, self._plan.record.spec
        fold = Fold(spec, self._learner, await self._start())
        state = fold.state
        source = ArchivedLog(self._objects, run_id, algorithm_of(spec), collector_for(spec, state.frontier))
        digest = self._compare_version(state.step)
        while state.step < plan.to:
            groups = await source.next_step(state.step)
            if groups is None:
                raise self._hole(state.step, source.lacking(state.step))
            self._comparison.groups(state.step, groups)
            batch, _ = fold.batch(groups)
            fold.learn(batch)
            fold.advance(groups)
            digest = self._compare_version(state.step)
            self._compare_checkpoint(state)
            report(ReplayedStep(step=state.step, to=plan.to, compared=bool(digest)))
        versions, checkpoints = self._comparison.versions, self._comparison.checkpoints
        return ReplayResult(
            run_id=run_id,
            start=plan.start,
            to=plan.to,
            digest=digest,
            versions=versions,
            checkpoints=checkpoints,
            differences=differences,
        )

    async def _start(self) -> TrainerState:
        if self._plan.first is None:
            return await begin(self._objects, self._learner, self._scratch, self._plan.record.spec)
        return await restore_from(self._plan.first, "", self._objects, self._learner, self._scratch, self._plan.record.spec)

    def _compare_version(self, step: int) -> str:
        """The digest of the learner's weights as version `step`; empty if none is recorded."""
        if not self._comparison.knows(step):
            return ""
        export = export_version(step, self._learner.weights(), False, self._scratch, self._dtype)
        export.file.remove()
        self._comparison.version(step, export.digest)
        return export.digest

    def _compare_checkpoint(self, state: TrainerState) -> None:
        if state.step not in self._plan.stored.checkpoints:
            return
        snapshot = Snapshot.of(state, self._learner, self._scratch, self._plan.record.spec.version_dtype != "fp32")
        self._comparison.checkpoint(snapshot)
        for file in snapshot.optimizer:
            file.remove()

    def _hole(self, step: int, lacking: str) -> ReplayError:
        run_id, later = self._plan.record.run_id, [kept for kept in sorted(self._plan.stored.checkpoints) if step < kept < self._plan.to]
        behind = f", or begin behind it with --from {later[0]}" if later else ""
        return ReplayError(
            f"the archive of {run_id} lacks {lacking}; restore {segments_path(run_id)} from a copy, give --to {step} at most{behind}; of a "
            "run in progress the newest steps are archived with its next checkpoint"
        )
