"""Whose turn it is among the runs that wait for a trainer: API keys take turns, so one user's many runs do not hold up the others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


class _Waiting(NamedTuple):
    """A waiting run; in a key, runs wait in this order."""

    yielded_unix_ns: int
    """When it gave up a trainer for want of its scorer; 0 if it did not."""
    run_id: str


class TrainerTurns:
    """The waiting runs of each key, kept in order as they change.

    The next trainer goes to the key that holds the fewest trainers, among those to the one that was served least recently, within the key
    to its oldest run. A run that yielded its trainer stands at the end of its key. If the key has no other, it comes after all other keys
    until a run was served after the yield: it would take the same trainer back.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[_Waiting]] = {}
        """By key, only keys with a waiting run."""
        self._places: dict[str, tuple[str, _Waiting]] = {}
        """Run id to key and place."""
        self._served: dict[str, int] = {}
        """When each key last got a trainer, in nanoseconds."""
        self._keys: list[tuple[int, _Waiting, str]] = []
        """Keys with a waiting run, the least recently served first: a choice among them then looks at few."""

    def add(self, run_id: str, key: str, yielded_unix_ns: int) -> None:
        """The run waits; or it waited, and its key or the time when it yielded is another now."""
        place = key, _Waiting(yielded_unix_ns, run_id)
        if self._places.get(run_id) == place:
            return
        self.remove(run_id)
        self._unlist(key)
        self._places[run_id] = place
        insort(self._runs.setdefault(key, []), place[1])
        self._list(key)

    def remove(self, run_id: str) -> None:
        """The run does not wait any more."""
        if run_id not in self._places:
            return
        key, waiting = self._places.pop(run_id)
        self._unlist(key)
        runs = self._runs[key]
        del runs[bisect_left(runs, waiting)]
        if not runs:
            del self._runs[key]
        self._list(key)

    def serve(self, key: str, unix_ns: int) -> None:
        """A run of the key got a trainer at that time."""
        self._unlist(key)
        self._served[key] = unix_ns
        self._list(key)

    def upcoming(self, held: Mapping[str, int], is_ready: Callable[[str], bool]) -> Iterator[str]:
        """The waiting runs that are ready, in the order in which they get trainers. Valid until a change.

        `held`: the trainers that each key holds.
        """
        counts, taken = Counter(held), Counter[str]()
        while key := self._next_key(counts, taken):
            run_id = self._runs[key][taken[key]].run_id
            taken[key] += 1
            if is_ready(run_id):
                counts[key] += 1
                yield run_id

    def _next_key(self, counts: Mapping[str, int], taken: Mapping[str, int]) -> str:
        """The key whose turn it is once `taken` runs of each were considered; empty if no run is left.

        A key without a trainer comes before all that are served later. So the search passes the keys with trainers and those that have just
        yielded, which are no more than there are trainers, and ends.
        """
        best, best_rank = "", (True, 0)
        for _, _, key in self._keys:
            if taken[key] == len(self._runs[key]):
                continue
            rank = self._just_yielded(self._runs[key][taken[key]]), counts[key]
            if not best or rank < best_rank:
                best, best_rank = key, rank
            if rank == (False, 0):
                break
        return best

    def _just_yielded(self, waiting: _Waiting) -> bool:
        """Whether no run was served since this one yielded."""
        return waiting.yielded_unix_ns > 0 and waiting.yielded_unix_ns > max(self._served.values(), default=0)

    def _list(self, key: str) -> None:
        if key in self._runs:
            insort(self._keys, self._rank(key))

    def _unlist(self, key: str) -> None:
        if key in self._runs:
            del self._keys[bisect_left(self._keys, self._rank(key))]

    def _rank(self, key: str) -> tuple[int, _Waiting, str]:
        return self._served.get(key, 0), self._runs[key][0], key
