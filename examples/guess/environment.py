"""A world of several turns: find a letter from `a` to `o` by guesses, each answered by where the letter lies."""

from typing import Any


class Environment:
    """The letter is in the dataset row. The policy sees `<` if it comes before the guess, and `>` if it comes after it."""

    def reset(self, item: dict[str, str], _seed: int) -> None:
        """Begins an episode. The row's prompt is all that the policy sees."""
        self.letter = item["letter"]
        self.guesses = 0

    def step(self, text: str) -> dict[str, Any]:
        """Answers one guess. The sooner the letter is found, the higher the reward."""
        self.guesses += 1
        if text == self.letter:
            return {"reward": 1.0 - 0.1 * (self.guesses - 1), "components": {"found": 1.0}, "done": True}
        return {"message": "<" if self.letter < text else ">", "reward": 0.0, "components": {"found": 0.0}}
