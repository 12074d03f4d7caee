"""A world of several turns: find a letter from `a` to `o` by guesses, each answered by where the letter lies."""

from math import log2
from typing import Any

LETTERS = "abcdefghijklmno"
BITS = log2(len(LETTERS) + 1)
"""Four guesses that halve find each of the 15 letters."""


class Environment:
    """The letter is in the dataset row. The policy sees `<` if it comes before the guess, and `>` if it comes after it."""

    def reset(self, item: dict[str, str], _seed: int) -> None:
        """Begins an episode. The row's prompt is all that the policy sees."""
        self.letter = item["letter"]
        self.possible = LETTERS

    def step(self, text: str) -> dict[str, Any]:
        """Answers one guess. It earns its share of the bits that are needed, and 1 if it is right."""
        before = self.unknown
        self.possible = "".join(one for one in self.possible if (one < text) == (self.letter < text) and one != text)
        if text == self.letter:
            return {"reward": 1.0 + before, "components": {"found": 1.0}, "done": True}
        return {"message": "<" if self.letter < text else ">", "reward": before - self.unknown, "components": {"found": 0.0}}

    @property
    def unknown(self) -> float:
        """Share of the bits that is still to be found."""
        return log2(len(self.possible) + 1) / BITS
