"""Whether the reward model that a spec names fits the policy's samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradbus.errors import Fault
from gradbus.spec import RolloutSpec
from gradbus_gateway.intake.model.intake import StoredModel

REWARD_MODEL: Final = "reward.model"
"""The field of the spec."""
_TOKENIZER: Final = "tokenizer.json"


def reward_model_faults(scorer: StoredModel | None, policy: StoredModel | None, rollout: RolloutSpec | None) -> Iterator[Fault]:
    """Faults of a reward model that cannot read the policy's tokens, or not all of a sample's."""
    if scorer is None or policy is None:
        return
    mine, theirs = ((model.spec.files or {}).get(_TOKENIZER) for model in (scorer, policy))
    if mine != theirs:
        message = "reads the policy's tokens, so its tokenizer.json has the policy's bytes"
        allowed = f"{theirs}: a reward model trained with the policy's tokenizer, and the policy's {_TOKENIZER} in its folder"
        yield Fault(f"{REWARD_MODEL}.files.{_TOKENIZER}", message, str(mine), allowed)
    if scorer.info.vocab_size < policy.info.vocab_size:
        message, given = "has no embeddings for some of the policy's tokens", f"vocab_size {scorer.info.vocab_size}"
        yield Fault(REWARD_MODEL, message, given, f"at least the policy's vocab_size, {policy.info.vocab_size}")
    if rollout is not None:
        prompt = rollout.max_prompt_tokens or policy.info.context_length - rollout.max_new_tokens
        longest = prompt + rollout.max_new_tokens
        if longest > scorer.info.context_length:
            allowed = f"at most {scorer.info.context_length} in all; set rollout.max_prompt_tokens"
            given = f"{prompt} for the prompt + {rollout.max_new_tokens}"
            yield Fault(REWARD_MODEL, "the longest sample does not fit the reward model's context", given, allowed)
