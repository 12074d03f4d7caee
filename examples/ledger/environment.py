"""A world whose ledger is hidden: the policy has to look pages up, and a page may send it to another one."""

import random
from typing import Any


class Environment:
    """The row has `page`, where to begin, and `tool`: `on`, or `off` for one that knows nothing. The seed makes the ledger."""

    def reset(self, item: dict[str, Any], seed: int) -> None:
        """Begins an episode. The row's prompt is all that the policy sees."""
        draw = random.Random(seed)
        others = draw.sample([page for page in range(10) if page != item["page"]], draw.randint(0, 1))
        self.trail = [item["page"], *others]
        self.amounts = [draw.randint(0, 9) for _ in range(10)]
        self.is_off = item["tool"] == "off"
        self.asked: list[int] = []
        self.said = ""

    def p(self, page: int) -> str:
        """Opens a page: `5?` is another page to open, `7.` an amount."""
        self.asked.append(page)
        if self.is_off:
            return "?."
        goes_on = page == self.trail[0] != self.trail[-1]
        self.said = f"{self.trail[-1]}?" if goes_on else f"{self.amounts[page]}."
        return self.said

    def reward(self, text: str) -> dict[str, float]:
        """1 for the amount to which the pages lead, and a part for a call, for the right pages, and for an answer that is what was said."""
        exact, called = float(text == f"{self.amounts[self.trail[-1]]}."), float(bool(self.asked))
        right = sum(page == asked for page, asked in zip(self.trail, self.asked, strict=False))
        followed = right / max(len(self.trail), len(self.asked))
        answered = called * float(text == self.said)
        reward = exact + 0.1 * called + 0.4 * followed + 0.2 * answered
        return {"reward": reward, "exact": exact, "called": called, "followed": followed, "answered": answered}
