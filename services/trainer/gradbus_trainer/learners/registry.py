"""Selects the learner that a spec names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gradbus.errors import SettingsError
from gradbus.process.limits import check_threads
from gradbus.spec import RunSpec
from gradbus_kernels.models.device_memory import limit_memory_share
from gradbus_kernels.models.loading import return_device_memory
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.learners.deepspeed.rank_failures import RankFailures
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.reward_model import RewardModelLearner
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.settings import Settings, TorchrunRank

if TYPE_CHECKING:
    from gradbus_trainer.learners.deepspeed.leader import Leader


class Learners:
    """Opens a run's learner. The ranks, if there are several, stay connected from run to run."""

    def __init__(self, settings: Settings, torchrun: TorchrunRank) -> None:
        self._settings = settings
        self._torchrun = torchrun
        self._leader: Leader | None = None
        self._failures = RankFailures(settings.cache_dir / "trainer" / f"{settings.worker_id}.ranks.json")

    def start(self) -> None:
        """Connects to the other ranks, if there are any. Raises SettingsError without DeepSpeed, RankLostError if a rank is missing."""
        if self._torchrun.size > 1:
            self._lead()

    def open(self, folder: Path, spec: RunSpec) -> Learner:
        """The learner of one run. Raises SettingsError when this process cannot run it, and ModelError."""
        check_threads(spec.trainer.threads, "trainer.threads")
        if spec.rollout.placement != "separate" and self._torchrun.size > 1:
            raise SettingsError(
                f'rollout.placement = "{spec.rollout.placement}" puts trainer and engine on one device and this trainer has '
                f'{self._torchrun.size} ranks; start the trainer without torchrun, or set rollout.placement = "separate"'
            )
        limit_memory_share(self._settings.device, spec.rollout.trainer_memory)
        if spec.trainer.backend == "torch":
            if self._torchrun.size > 1:
                raise SettingsError(
                    f"the torch backend is one process and this trainer has {self._torchrun.size} ranks; start the trainer without "
                    'torchrun (in a layout: with one device), or set trainer.backend = "deepspeed"'
                )
            kind = RewardModelLearner if spec.kind == "reward_model" else TorchLearner
            return kind(folder, spec, self._settings.device)
        leader = self._lead()
        from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner  # noqa: PLC0415 - only with its extra

        return DeepSpeedLearner(folder, spec, leader)

    def check_failures(self, run_id: str) -> None:
        """Raises TrainingError if the ranks failed at the run in the same way again and again, in earlier processes."""
        self._failures.check(run_id)

    def note_failure(self, run_id: str, reached: int) -> None:
        """If a rank failed, which ends this process, the next one is to know. `reached` is the run's step, -1 while it is prepared."""
        if self._leader is not None and (cause := self._leader.failure()):
            self._failures.add(run_id, cause, reached)

    def release(self) -> None:
        """Frees what is left of a run that is over, on every rank."""
        if self._leader is not None:
            self._leader.release()
        return_device_memory()

    def close(self) -> None:
        """Stops the other ranks."""
        if self._leader is not None:
            self._leader.close()

    def _lead(self) -> Leader:
        if self._leader is None:
            if find_spec("deepspeed") is None:
                raise SettingsError('trainer.backend = "deepspeed" needs DeepSpeed here; install gradbus[trainer-deepspeed]')
            from gradbus_trainer.learners.deepspeed.leader import Leader  # noqa: PLC0415 - only with its extra

            seconds = self._settings.collective_seconds
            self._leader = Leader(Ranks(self._torchrun, self._settings.device, seconds), seconds)
        return self._leader
