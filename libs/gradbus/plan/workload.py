"""How long prompts and responses are taken to be."""

from __future__ import annotations

from dataclasses import dataclass

from gradbus.spec import RunSpec

_PROMPT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Workload:
    """Mean lengths, in tokens."""

    prompt: int
    response: int

    @classmethod
    def of(cls, spec: RunSpec, prompt: int | None = None, response: int | None = None) -> Workload:
        """What is given, else: prompts of 256 tokens, or of `rollout.max_prompt_tokens` if that is less; responses of half the longest."""
        longest = spec.rollout.max_prompt_tokens or _PROMPT_TOKENS
        drawn = spec.max_drawn_tokens
        return cls(prompt or min(_PROMPT_TOKENS, longest), min(drawn, response or max(1, drawn // 2)))
