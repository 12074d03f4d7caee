"""The whole spec."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradbus.spec.algorithm import AlgorithmSpec
from gradbus.spec.sections import (
    CheckpointSpec,
    DataSpec,
    Dtype,
    EvaluationSpec,
    Flag,
    Integer,
    ModelSpec,
    RewardSpec,
    RolloutSpec,
    ScheduleSpec,
    TrainerSpec,
    WeightsSpec,
)


class RunSpec(BaseModel):
    """One reinforcement-learning run. With `deterministic`, the final weights are a function of the spec alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Gradbus run spec")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="a-z, 0-9 and '-'; at most 63 characters.")]
    seed: Integer = Field(0, ge=0, lt=2**63)
    deterministic: Flag | None = Field(None, description="Default: true with the torch engine and `fixed_lag`.")
    numerics: Literal["fast", "batch_invariant"] = Field(
        "fast", description="`batch_invariant`: rollout and trainer compute with the same operators, so their log-probabilities are equal."
    )
    model: ModelSpec
    data: DataSpec
    rollout: RolloutSpec = RolloutSpec()
    reward: RewardSpec
    algorithm: AlgorithmSpec = AlgorithmSpec()
    schedule: ScheduleSpec
    trainer: TrainerSpec = TrainerSpec()
    weights: WeightsSpec = WeightsSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    evaluation: EvaluationSpec = EvaluationSpec()

    @property
    def is_deterministic(self) -> bool:
        """`deterministic` with its default filled in."""
        if self.deterministic is not None:
            return self.deterministic
        return self.rollout.traits.deterministic and self.schedule.mode == "fixed_lag"

    @property
    def version_dtype(self) -> Dtype:
        """`weights.dtype` with its default filled in."""
        return self.weights.dtype or self.trainer.dtype

    @property
    def needs_probe(self) -> bool:
        """Whether each version carries a probe to compare a server's log-probabilities with; see `EngineTraits.needs_probe`."""
        return self.rollout.traits.needs_probe

    @property
    def total_groups(self) -> int:
        """Number of groups that all steps take: in `fixed_lag` with the filtered ones, in `free` only those that are trained."""
        return self.schedule.groups_per_step * self.schedule.steps

    def oldest_allowed_version(self, step: int) -> int:
        """The oldest policy version whose samples step `step` may train on; in `fixed_lag` the only one."""
        return max(0, step - self.schedule.max_staleness)
