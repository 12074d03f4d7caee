"""What a chat template writes between two messages, apart from what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["assistant", "tool", "user"]
"""Who speaks. Before a frame `assistant` is the policy's turn up to its end token, after one it is the policy's next turn."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a frame for the name or the call id of the message before or after it."""

    of: Literal["before", "after"]
    field: Literal["name", "call_id"]


Frame = tuple[str | Slot, ...]
"""Texts of the template, which spell its control tokens, and what stands between them."""

FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "as it is": str,
    "trimmed": str.strip,
    "JSON": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "trimmed JSON": lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
    "ASCII JSON": lambda text: json.dumps(text)[1:-1],
    "trimmed on the left": str.lstrip,
    "trimmed on the right": str.rstrip,
}
"""How templates write a message's content, apart from the quotes around it."""


@dataclass(frozen=True, slots=True)
class TemplateFrames:
    """The frames of one chat template; of no template they are all empty."""

    close: str = ""
    """What ends a turn of the policy that has no end token; it ends with `end`."""
    end: str = ""
    """The token that ends a turn of the policy, as text."""
    between: Mapping[tuple[Kind, Kind], Frame] | None = None
    """The frame between two messages; None: no frames at all."""
    forms: Mapping[Kind, str] | None = None
    """Of tools' and users' messages, the name of the form in FORMS; None: as they are."""
    results_from: Kind = "tool"
    """`user` for a template that knows no tools."""
    call: str = ""
    """A call of the tool `sentinels.name_of(2)` with one argument x as the template writes it, framed; empty if it writes none."""
    refusals: Mapping[tuple[Kind, Kind], str] = field(default_factory=dict)
    """Why there is no frame between two messages."""

    def frame(self, before: Kind, after: Kind) -> Frame:
        """What stands between two messages. Raises KeyError if the template refuses the second one there."""
        return () if self.between is None else self.between[before, after]

    def written(self, kind: Kind, content: str) -> str:
        """The content as the template writes it."""
        return content if self.forms is None else FORMS[self.forms[kind]](content)
