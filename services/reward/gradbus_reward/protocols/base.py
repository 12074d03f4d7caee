"""What the protocols have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Protocol

from gradbus.graders import ScoreResult
from gradbus.sandbox.bounds import MAX_COMPONENT, MAX_COMPONENTS, MAX_NAME
from gradbus.v1 import reward_pb2

Sample = reward_pb2.ScoreSample
Row = Callable[[Sample], Mapping[str, Any]]
"""The dataset row of a sample. Raises ValueError for one that is no JSON."""


@dataclass(frozen=True, slots=True)
class PeerCall:
    """One POST, and the samples that it asks about."""

    samples: Sequence[Sample]
    body: Mapping[str, Any]


class RewardProtocol(Protocol):
    """How one kind of server is asked."""

    def calls(self, samples: Sequence[Sample], row: Row) -> Iterator[PeerCall]:
        """The calls that score all samples. Raises ValueError for a row that cannot be asked about."""
        ...

    def results(self, call: PeerCall, document: Any) -> Sequence[ScoreResult]:
        """One result per sample of the call, in its order. `document`: the answer as JSON, with all numbers as floats."""
        ...


def rows() -> Row:
    """Reads rows; the samples of a group have the same one."""
    parsed = cache(_object)
    return lambda sample: parsed(sample.item_json or "{}")


def number(value: object, name: str) -> ScoreResult:
    """The reward that a server gave; a null says that it has none for this sample."""
    if isinstance(value, float):
        return ScoreResult(value)
    if value is None:
        return ScoreResult.invalid(f"the server gave null as {name}")
    return ScoreResult.error(
        f"the server's {name} is {type(value).__name__}, not a number; check that it speaks this protocol", permanent=True
    )


def by_place(call: PeerCall, values: object, name: str) -> list[ScoreResult]:
    """The results of a list with one value for each sample. A list of another length says nothing about any of them."""
    asked = len(call.samples)
    if not isinstance(values, list):
        return malformed(call, f"has no list {name}")
    if len(values) != asked:
        return malformed(call, f"has {len(values)} values of {name} for {asked} samples, and no way to tell which are missing")
    return [number(value, name) for value in values]


def by_index(call: PeerCall, entries: object, read: Callable[[Mapping[str, Any]], ScoreResult]) -> list[ScoreResult]:
    """The results of a list of objects with an `index`, in any order."""
    if not isinstance(entries, list):
        return malformed(call, "has no list `data`")
    found: dict[int, list[ScoreResult]] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(index := entry.get("index"), float) and index.is_integer():
            found.setdefault(int(index), []).append(read(entry))
    return [_single(found.get(n, [])) for n in range(len(call.samples))]


def malformed(call: PeerCall, fault: str) -> list[ScoreResult]:
    """A permanent error of every sample of the call."""
    reason = f"the server's answer {fault}; check that it speaks this protocol"
    return [ScoreResult.error(reason, permanent=True) for _ in call.samples]


def components(given: Mapping[Any, Any]) -> dict[str, float]:
    """The numbers among `given`, as many as a result may have; the rest is left out, for it is not part of the reward."""
    return dict(islice(((name, value) for name, value in given.items() if _is_component(name, value)), MAX_COMPONENTS))


def _is_component(name: object, value: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME and isinstance(value, float) and abs(value) <= MAX_COMPONENT


def _object(text: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = json.loads(text)
    return row


def _single(results: Sequence[ScoreResult]) -> ScoreResult:
    if len(results) == 1:
        return results[0]
    many = f"{len(results)} results" if results else "no result"
    return ScoreResult.error(f"the server returned {many} for this sample; it must return one for each", permanent=True)
