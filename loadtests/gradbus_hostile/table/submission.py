"""One row of the table of hostile submissions, and how rows are written.

`refused`: the gateway answers 4xx with the cause. `failed`: the run ends by itself with the cause in its status. `succeeded`: the
submission is odd and harmless. `cancelled` and `deleted`: its user ended it. Most can end in one way only; a few may be refused or
may fail, as long as they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from gradbus.client import Client
from gradbus_hostile.damage import Damage, chat_template
from gradbus_hostile.material import Json, Material, good_chats

End = Literal["refused", "failed", "succeeded", "cancelled", "deleted"]
REFUSED: Final[frozenset[End]] = frozenset({"refused"})
FAILED: Final[frozenset[End]] = frozenset({"failed"})
REFUSED_OR_FAILED: Final[frozenset[End]] = REFUSED | FAILED
HARMLESS: Final[frozenset[End]] = frozenset({"succeeded"})
ANY: Final[frozenset[End]] = REFUSED | FAILED | HARMLESS
CANCELLED: Final[frozenset[End]] = frozenset({"cancelled"})
DELETED: Final[frozenset[End]] = frozenset({"deleted"})

Body = Callable[[Material], Json]
Conduct = Callable[[Client, str], None]


def waits(_client: Client, _run_id: str) -> None:
    """Lets the run end by itself."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One hostile submission."""

    name: str
    body: Body
    ends: frozenset[End]
    conduct: Conduct = waits
    """What its user does with the run after it was accepted."""


def model(name: str, change: Damage, ends: frozenset[End] = REFUSED, *, lines: Iterable[str] = ()) -> Submission:
    """A damaged model, with rows of its own if `lines` has any."""
    return Submission(name, lambda material: material.model(change, lines), ends)


def template(name: str, text: str, ends: frozenset[End] = REFUSED, *, lines: Iterable[str] = ()) -> Submission:
    """A chat template, for good messages unless `lines` has others."""
    return model(f"template: {name}", chat_template(text), ends, lines=lines or good_chats())


def grader(name: str, source: str, ends: frozenset[End] = FAILED, **changes: Any) -> Submission:
    """A Python grader."""
    return Submission(f"grader: {name}", lambda material: material.grader(source, **changes), ends)


def rows(name: str, *lines: str, ends: frozenset[End] = REFUSED, **changes: Any) -> Submission:
    """A dataset of these lines."""
    return Submission(f"data: {name}", lambda material: material.rows(lines, **changes), ends)


def spec(title: str, ends: frozenset[End] = REFUSED, **changes: Any) -> Submission:
    """Other sections of a good spec."""
    return Submission(f"spec: {title}", lambda material: material.spec(**changes), ends)
