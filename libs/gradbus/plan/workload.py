"""How long prompts and responses are taken to be."""

from __future__ import annotations

from dataclasses import dataclass

from gradbus.spec import RunSpec

_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens, means unless they say otherwise."""

    prompt: int
    response: int
    longest_prompt: int = 0
    """Where it is not known, prompts are taken to be equally long."""

    @property
    def longest(self) -> int:
        """Of the longest prompt."""
        return max(self.prompt, self.longest_prompt)

    @classmethod
    def of(cls, spec: RunSpec, prompt: int | None = None, response: int | None = None, longest_prompt: int = 0) -> Workload:
        """What is given or measured, else: prompts of 256 tokens, or of `rollout.max_prompt_tokens` if that is less; responses of half
        the longest.

        Given responses are taken to have 256 tokens.
        """
        prompt = prompt or min(_TOKENS, spec.rollout.max_prompt_tokens or _TOKENS)
        if spec.trains_given:
            return cls(prompt, response or _TOKENS, longest_prompt)
        drawn = spec.max_drawn_tokens
        return cls(prompt, min(drawn, response or max(1, drawn // 2)), longest_prompt)
