"""Whether the reward model and the teacher that a spec names fit the policy's samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradbus.errors import Fault
from gradbus.spec import ModelSpec, RewardSpec, RolloutSpec, RunSpec, TeacherSpec
from gradbus_gateway.intake.model.intake import StoredModel
from gradbus_gateway.intake.spec.teacher_servers import TeacherServer

REWARD_MODEL: Final = "reward.model"
TEACHER: Final = "teacher"
"""The fields of the spec."""
_TOKENIZER: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class FrozenModels:
    """The frozen models of a submission, in object storage."""

    scorer: StoredModel | None
    teacher: StoredModel | None
    faults: Sequence[Fault]
    """Why one of them could not be stored."""
    server: TeacherServer | None = None
    """In place of a teacher in object storage."""

    def unfit(self, policy: StoredModel | None, rollout: RolloutSpec | None, *, in_environment: bool = False) -> Iterator[Fault]:
        """Faults of models that cannot read the policy's tokens, or not all of a sample's.

        `PromptCheck` compares the tokenizers of teacher and policy: theirs may be equal and have other bytes.
        """
        if policy is None:
            return
        if self.scorer is not None:
            yield from _bytes_faults(self.scorer, policy)
            yield from _size_faults(REWARD_MODEL, self.scorer, policy, rollout, in_environment=in_environment)
        if self.teacher is not None:
            yield from _size_faults(TEACHER, self.teacher, policy, rollout, in_environment=in_environment)
            if isinstance(spec := self.teacher.spec, TeacherSpec) and spec.top_k is not None:
                yield from _row_faults(spec.top_k, self.teacher.info.vocab_size, policy.info.vocab_size)
        if self.server is not None:
            yield from self.server.unfit(policy, rollout, in_environment=in_environment)
            if self.server.spec.top_k is not None:
                yield from _row_faults(self.server.spec.top_k, policy.info.vocab_size, policy.info.vocab_size)

    def sections(self, spec: RunSpec, policy: StoredModel) -> dict[str, RewardSpec | ModelSpec]:
        """The sections of the spec that name them, with the digests of all files."""
        found: dict[str, RewardSpec | ModelSpec] = {}
        if self.scorer is not None:
            found["reward"] = spec.reward.model_copy(update={"model": self.scorer.spec})
        if self.teacher is not None:
            found["teacher"] = self.teacher.spec
        if self.server is not None:
            found["teacher"] = self.server.served(policy)
        return found


def sampler_row_faults(spec: RunSpec, policy: StoredModel) -> Iterator[Fault]:
    """Rows of the policy's own versions that would hold its whole vocabulary."""
    count, vocabulary = spec.algorithm.centering, policy.info.vocab_size
    if count is not None and count >= vocabulary:
        yield Fault("algorithm.centering", "leaves no token for the rest of a row", str(count), f"less than vocab_size, {vocabulary}")


def _row_faults(top_k: int, teachers: int, policys: int) -> Iterator[Fault]:
    if teachers != policys:
        message = "a row of the teacher is compared with one of the policy, and the embeddings of both have another number of tokens"
        yield Fault(f"{TEACHER}.top_k", message, f"vocab_size {teachers}", f"none, or a teacher with the policy's vocab_size, {policys}")
    elif top_k >= policys:
        yield Fault(f"{TEACHER}.top_k", "leaves no token for the rest of a row", str(top_k), f"less than vocab_size, {policys}")


def _bytes_faults(scorer: StoredModel, policy: StoredModel) -> Iterator[Fault]:
    mine, theirs = ((model.spec.files or {}).get(_TOKENIZER) for model in (scorer, policy))
    if mine != theirs:
        message = "reads the policy's tokens, so its tokenizer.json has the policy's bytes"
        allowed = f"{theirs}: a reward model trained with the policy's tokenizer, and the policy's {_TOKENIZER} in its folder"
        yield Fault(f"{REWARD_MODEL}.files.{_TOKENIZER}", message, str(mine), allowed)


def _size_faults(
    field: str, model: StoredModel, policy: StoredModel, rollout: RolloutSpec | None, *, in_environment: bool
) -> Iterator[Fault]:
    if model.info.vocab_size < policy.info.vocab_size:
        message, given = "has no embeddings for some of the policy's tokens", f"vocab_size {model.info.vocab_size}"
        yield Fault(field, message, given, f"at least the policy's vocab_size, {policy.info.vocab_size}")
    if rollout is not None:
        prompt = rollout.max_prompt_tokens or policy.info.context_length - rollout.max_new_tokens
        longest = policy.info.context_length if in_environment else prompt + rollout.max_new_tokens
        if longest > model.info.context_length:
            allowed = f"at most {model.info.context_length} in all; set rollout.max_prompt_tokens"
            given = f"an episode of {longest}" if in_environment else f"{prompt} for the prompt + {rollout.max_new_tokens}"
            name = "reward model" if field == REWARD_MODEL else field
            yield Fault(field, f"the longest sample does not fit the {name}'s context", given, allowed)
