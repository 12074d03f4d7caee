"""The whole spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradbus.spec.algorithm import AlgorithmSpec
from gradbus.spec.data import DataSpec
from gradbus.spec.kinds import PAIR_KINDS, Kind, PreferenceSpec, RowColumns, columns_of, with_kind
from gradbus.spec.presets import with_critic
from gradbus.spec.reward.section import RewardSpec
from gradbus.spec.sections import (
    CheckpointSpec,
    Dtype,
    EnvironmentSpec,
    EvaluationSpec,
    Flag,
    Integer,
    ModelSpec,
    Name,
    RolloutSpec,
    RunName,
    ScheduleSpec,
    TeacherSpec,
    TrainerSpec,
    WeightsSpec,
    most_drawn,
)

EVALUATED_VERSIONS: Final = 2
"""How many of the versions that are to be evaluated are kept, up to the newest checkpoint."""
DEFAULT_QUEUE: Final = "default"
_GROUPS_AHEAD: Final = 4096
"""Groups of given responses between two published versions."""


def resolved_sections(given: Any) -> Any:
    """The fields of a spec with the sections that its kind and its algorithm's preset decide."""
    return with_critic(with_kind(given))


class RunOptions(BaseModel):
    """The fields at the top of a spec."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Gradbus run spec")

    name: RunName
    queue: Name = Field(DEFAULT_QUEUE, description="The queue in which the run waits for a trainer; a trainer serves one queue.")
    kind: Kind = Field(
        "rl",
        description="`rl` samples responses and trains on their rewards; the others train on the responses of the dataset: `sft` on "
        "completions, `kto` on completions with a label, the rest on pairs of a chosen and a rejected one.",
    )
    seed: Integer = Field(0, ge=0, lt=2**63)
    deterministic: Flag | None = Field(None, description="Default: true with the torch engine and `fixed_lag`, without `teacher.url`.")
    numerics: Literal["fast", "batch_invariant"] = Field(
        "fast", description="`batch_invariant`: rollout and trainer compute with the same operators, so their log-probabilities are equal."
    )


class RunSpec(RunOptions):
    """One run. With `deterministic`, the final weights are a function of the spec alone."""

    model: ModelSpec
    data: DataSpec
    rollout: RolloutSpec = RolloutSpec()
    environment: EnvironmentSpec | None = Field(None, description="A world in which each sample is an episode of many turns.")
    reward: RewardSpec = RewardSpec()
    preference: PreferenceSpec | None = Field(None, description="Of a run on pairs or labels; the defaults are those of its kind.")
    teacher: TeacherSpec | None = Field(None, description="A teacher, which the reference service computes.")
    algorithm: AlgorithmSpec = AlgorithmSpec()
    schedule: ScheduleSpec
    trainer: TrainerSpec = TrainerSpec()
    weights: WeightsSpec = WeightsSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    evaluation: EvaluationSpec = EvaluationSpec()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        return resolved_sections(given)

    @property
    def trains_given(self) -> bool:
        """Whether the run trains on the responses of its dataset, and samples none."""
        return self.kind != "rl"

    @property
    def trains_pairs(self) -> bool:
        """Whether a group is a chosen and a rejected response."""
        return self.kind in PAIR_KINDS

    @property
    def teacher_weight(self) -> float:
        """Factor of log pi_teacher - log mu in the advantage of a token; 0 without a teacher."""
        if self.teacher is None:
            return 0.0
        return self.teacher.coefficient or 0.0 if self.algorithm.reads_rewards else 1.0

    def reference_version(self, version: int) -> int:
        """The version of the run that the KL of samples of `version` is to; without `kl_reference_steps` 0, which is the base model.

        With it 0 is the version with which the run begins: the base model, with `model.adapters` beside it if the run goes on with some.
        """
        steps = self.algorithm.kl_reference_steps if self.algorithm.kl else None
        return version - version % steps if steps else 0

    def needs_version(self, version: int, step: int) -> bool:
        """Whether a run that goes on at `step` may need a version that is no newer: to sample with, or as the reference of its KL."""
        oldest = step - self.schedule.max_staleness
        return version >= oldest or 0 < version == self.reference_version(oldest)

    @property
    def has_scorer(self) -> bool:
        """Whether `[reward]` names a scorer; rewards may come from an environment alone."""
        return self.reward.grader is not None or self.reward.service is not None or self.reward.model is not None

    @property
    def columns(self) -> RowColumns:
        """The columns of the dataset that the run reads."""
        return replace(columns_of(self.kind, self.data), whole_row=self.environment is not None)

    @property
    def max_drawn_tokens(self) -> int:
        """The most tokens that the policy draws in a sample."""
        return most_drawn(self.rollout, self.environment)

    @property
    def may_have_journal(self) -> bool:
        """Whether its episodes may be recorded turn by turn."""
        return self.environment is not None and self.environment.may_have_journal

    @property
    def publish_every(self) -> int:
        """Steps between two published versions: nobody samples with those of a run on given responses."""
        return max(1, min(self.checkpoint.every, _GROUPS_AHEAD // self.schedule.groups_per_step)) if self.trains_given else 1

    def evaluates(self, step: int) -> bool:
        """Whether the version after `step` steps is evaluated on held-out rows: before the first step, every N steps, and the final one."""
        return self.data.eval is not None and (step % self.evaluation.every == 0 or step == self.schedule.steps)

    @property
    def steps_ahead(self) -> int:
        """`fixed_lag`: how many steps' groups are dispatched beyond the newest version, one more than its workers can take up at once."""
        return self.publish_every + 1 if self.trains_given else self.schedule.max_staleness + 2

    @property
    def is_deterministic(self) -> bool:
        """`deterministic` with its default filled in."""
        if self.deterministic is not None:
            return self.deterministic
        is_served = self.teacher is not None and self.teacher.url is not None  # its numbers depend on what it computes beside
        return self.rollout.traits.deterministic and self.schedule.mode == "fixed_lag" and not is_served

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
        """Number of groups that all steps take: without replaced ones; in `free` only those that are trained."""
        return self.schedule.groups_per_step * self.schedule.steps

    @property
    def samples_per_step(self) -> int:
        """Samples of a step's groups; in `fixed_lag` with those of filtered ones."""
        return self.schedule.groups_per_step * self.rollout.group_size

    def oldest_allowed_version(self, step: int) -> int:
        """The oldest policy version whose samples step `step` may train on; in `fixed_lag` the only one.

        Given responses are all under version 0.
        """
        return 0 if self.trains_given else max(0, step - self.schedule.max_staleness)
