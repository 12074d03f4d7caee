"""The section `[reward]`."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Final

from pydantic import Field

from gradbus.spec.reward.graders import Grader
from gradbus.spec.reward.protocols import PROTOCOLS, split_service
from gradbus.spec.sections import ColumnName, Flag, ModelSpec, Number, Section, TokenId

MAX_CHANGES: Final = 64
MAX_GROUP: Final = 2**31 - 1
ShadowName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]


class RewardModelSpec(ModelSpec):
    """A reward model, with the policy's tokenizer: Hugging Face's sequence classification with one label, read at the last token."""

    offload: Flag = Field(
        False,
        description="Whether its weights wait in host memory while nobody asks for a score, and leave the accelerator to others; on a CPU "
        "it changes nothing.",
    )


class ScorerSpec(Section):
    """A grader, which runs in Gradbus, or a service."""

    grader: Grader | None = None
    service: str | None = Field(
        None,
        max_length=2048,
        description="grpc://host:port or http(s)://host:port/path of your own scorer; a server of another framework with "
        f"{', '.join(f'`{name}+`' for name in PROTOCOLS)} before its URL.",
    )
    label: ColumnName = Field("answer", description="`openrlhf+` and `slime+`: column with the reference answer, which they call label.")
    reward_key: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="`slime+`: the reward's name in the answer; unset: the answer is a number.",
    )
    served_model: str | None = Field(
        None, min_length=1, max_length=400, description="`sglang+` and `vllm+`: name of the model that the server serves."
    )
    label_token_ids: tuple[TokenId, ...] = Field(
        (), max_length=64, description="`sglang+` with `/score`: the reward is the probability of the first among these next tokens."
    )

    cache: Flag = Field(
        False,
        description="Whether its answers are kept: a sample with the same row, prompt, response and end is not asked about again. "
        "For a scorer that is a function of these alone.",
    )

    @property
    def alone(self) -> ScorerSpec:
        """The scorer without what else its section has."""
        return ScorerSpec(**{name: getattr(self, name) for name in ScorerSpec.model_fields})

    @property
    def name(self) -> str:
        """For messages."""
        return self.service or (f"the {self.grader.type} grader" if self.grader is not None else "no scorer")

    @property
    def reads_label(self) -> bool:
        """Whether the service is told the reference answer, in `label`."""
        protocol, _ = split_service(self.service or "")
        return bool(protocol) and "label" in PROTOCOLS[protocol].reads


class RewardChange(ScorerSpec):
    """A scorer that takes the place of the one before it, with all its settings."""

    from_group: int = Field(
        ge=0, le=MAX_GROUP, description="Index of the first group that it judges; they are numbered as they are dispatched."
    )
    from_version: int | None = Field(
        None,
        ge=0,
        le=MAX_GROUP,
        description="First version whose held-out rows it judges; default: that which the step of its first group trains, if no group is "
        "filtered.",
    )

    def first_version(self, groups_per_step: int) -> int:
        """The first version whose held-out rows it judges."""
        return -(-self.from_group // groups_per_step) if self.from_version is None else self.from_version


class RewardSpec(ScorerSpec):
    """Exactly one of `grader` (runs in Gradbus), `service` (your own scorer) and `model` (a reward model).

    A run on given responses has none. One whose samples only a teacher judges has one for its held-out rows, if it has these.
    """

    model: RewardModelSpec | None = Field(None, description="A reward model, which the reference service computes.")
    timeout_seconds: Number = Field(
        10.0, ge=0.1, le=3600.0, description="Deadline of one scorer call; a reward model has at least 120 s, for it may have to be loaded."
    )
    shadow: dict[ShadowName, ScorerSpec] = Field(
        {},
        max_length=8,
        description="Scorers that run beside the one that trains: their rewards are components, and never trained.",
    )

    changes: tuple[RewardChange, ...] = Field(
        (),
        max_length=MAX_CHANGES,
        description="Scorers that take over from a group on, in the order of their groups. `PUT /v1/runs/{id}/reward` adds one to a run.",
    )

    @property
    def scorers(self) -> dict[str, ScorerSpec]:
        """The scorers that train and their shadows, by the path of their sections."""
        shadows = {f"reward.shadow.{name}": shadow for name, shadow in self.shadow.items()}
        changes = {f"reward.changes.{n}": change for n, change in enumerate(self.changes)}
        return {"reward": self, **shadows, **changes}

    @property
    def in_turn(self) -> list[RewardSpec]:
        """The sections that judge one after the other, each without changes."""
        return [self.model_copy(update={**dict(scorer.alone), "changes": ()}) for scorer in (self, *self.changes)]

    def turn_of_group(self, group: int) -> int:
        """The position among `in_turn` of the section that judges a group."""
        return bisect_right([change.from_group for change in self.changes], group)

    def turn_of_version(self, version: int, groups_per_step: int) -> int:
        """The same for the held-out rows of a version."""
        begun = (turn for turn, change in enumerate(self.changes, start=1) if change.first_version(groups_per_step) <= version)
        return max(begun, default=0)

    def with_change(self, change: RewardChange) -> RewardSpec:
        """The section with one more change, at its place."""
        return self.model_copy(update={"changes": tuple(sorted((*self.changes, change), key=lambda one: one.from_group))})
