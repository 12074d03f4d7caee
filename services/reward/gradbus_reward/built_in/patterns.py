"""Regular expressions. Python's engine goes back over a text, for some patterns exponentially often: the caller bounds the time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from gradbus_reward.built_in.texts import Grade


def compiled(settings: Mapping[str, Any]) -> Grade:
    """The grader of a text, and of a reference if it has one. Raises re.error."""
    pattern = re.compile(settings["pattern"])
    is_full = settings["match"] == "full"

    def grade(text: str, reference: str | None = None) -> float:
        if is_full or reference is None:
            found = pattern.fullmatch(text) if is_full else pattern.search(text)
        else:
            last = deque(pattern.finditer(text), maxlen=1)
            found = last[0] if last else None
        if found is None or reference is None:
            return float(found is not None)
        given = found.group(1) if pattern.groups else found.group()
        return float((given or "").strip() == reference.strip())

    return grade
