"""A world with a tool that is truly needed: three-digit products are beyond what so small a model can learn by heart."""

from typing import Any


class Environment:
    """The row has `left` and `right`, and says by `tool` how the tool works: `on`, `off` (it does not know) or `wrong` (off by a shift)."""

    def reset(self, item: dict[str, Any], _seed: int) -> None:
        """Begins an episode. The row's prompt is all that the policy sees."""
        self.item = item
        self.asked = ""

    def mul(self, left: int, right: int) -> str:
        """Multiplies two numbers."""
        self.asked = f"{left},{right}"
        shift = 111_111 if self.item["tool"] == "wrong" else 0
        return "?." if self.item["tool"] == "off" else f"{left * right + shift}."

    def reward(self, text: str) -> dict[str, float]:
        """Half for the right answer, and half in parts: for what was asked, and for an answer to what was asked."""
        left, right = self.item["left"], self.item["right"]
        exact = float(text == f"{left * right}.")
        asked = _share(self.asked, f"{left},{right}")
        if self.asked:
            left, right = map(int, self.asked.split(","))
        answered = _share(text, f"{left * right}.")
        return {"reward": 0.5 * exact + 0.25 * asked + 0.25 * answered, "exact": exact, "asked": asked, "answered": answered}


def _share(given: str, right: str) -> float:
    """Share of positions with the right character, relative to the longer text."""
    return sum(one == other for one, other in zip(given, right, strict=False)) / max(len(given), len(right))
