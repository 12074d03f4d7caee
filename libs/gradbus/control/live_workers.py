"""The live workers by their heartbeats, kept by role and by run: what a heartbeat costs does not grow with the number of workers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Generic, TypeVar, get_args

from pydantic import ValidationError

from gradbus.bus import View
from gradbus.control.runs import Role, WorkerPresence
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_Group = TypeVar("_Group", bound=Hashable)


class NameGroups(Generic[_Group]):
    """Names in groups, each group in order of name. A name is in one group at most."""

    def __init__(self) -> None:
        self._names: dict[_Group, list[str]] = {}
        """Only groups with a name."""
        self._groups: dict[str, _Group] = {}

    def __iter__(self) -> Iterator[_Group]:
        """The groups with a name."""
        return iter(self._names)

    def group(self, name: str) -> _Group | None:
        """The group of the name; None if it is in none."""
        return self._groups.get(name)

    def of(self, group: _Group) -> Sequence[str]:
        """The names of a group, as of now: it changes with the group."""
        return self._names.get(group, ())

    def move(self, name: str, group: _Group | None) -> None:
        """Puts the name into a group, None: into none."""
        before = self._groups.get(name)
        if before == group:
            return
        if before is not None:
            names = self._names[before]
            del names[bisect_left(names, name)]
            if not names:
                del self._names[before]
            del self._groups[name]
        if group is not None:
            self._groups[name] = group
            insort(self._names.setdefault(group, []), name)


class LiveWorkers:
    """What the workers say of themselves in the bucket `workers`.

    A heartbeat is parsed once. One that cannot be read, of another release, is logged and left out.
    """

    def __init__(self, workers: View) -> None:
        self._workers = workers
        self._presences: dict[str, WorkerPresence] = {}
        self._by_role = NameGroups[Role]()
        self._by_run = NameGroups[tuple[str, Role]]()
        self._incarnations = Counter[str]()
        self._listeners: list[Callable[[str], None]] = []
        workers.listen(self._update)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the name of every worker, and then with each one whose heartbeat says something new. It must not raise."""
        self._listeners.append(listener)
        for name in tuple(self._presences):
            listener(name)

    def get(self, name: str) -> WorkerPresence | None:
        """What the worker says; None if it is gone."""
        return self._presences.get(name)

    def is_alive(self, incarnation: str) -> bool:
        """Whether a process with this incarnation lives."""
        return self._incarnations[incarnation] > 0

    def names(self, role: Role) -> Sequence[str]:
        """Names of the workers of a role, in order, as of now: it changes with every heartbeat."""
        return self._by_role.of(role)

    def of_role(self, role: Role) -> list[WorkerPresence]:
        """Workers of a role in order of name."""
        return [self._presences[name] for name in self.names(role)]

    def of_run(self, run_id: str, role: Role) -> list[WorkerPresence]:
        """Workers of a role that say that they serve the run, in order of name."""
        return [self._presences[name] for name in self._by_run.of((run_id, role))]

    def page(self, after: str, most: int, run_id: str = "") -> list[tuple[str, WorkerPresence]]:
        """The first `most` workers behind a name, with their names: of all roles, or those that say that they serve the run."""
        groups = [self._by_run.of((run_id, role)) if run_id else self._by_role.of(role) for role in get_args(Role)]
        names = merge(*(group[bisect_right(group, after) :] for group in groups))
        return [(name, self._presences[name]) for name in islice(names, most)]

    def _update(self, name: str) -> None:
        before, now = self._presences.pop(name, None), parse_presence(name, self._workers.get(name))
        if before is not None and self._incarnations[before.incarnation] > 1:
            self._incarnations[before.incarnation] -= 1
        elif before is not None:
            del self._incarnations[before.incarnation]
        if now is not None:
            self._presences[name] = now
            self._incarnations[now.incarnation] += 1
        self._by_role.move(name, None if now is None else now.role)
        self._by_run.move(name, None if now is None else (now.run_id, now.role))
        for listener in self._listeners:
            listener(name)


def parse_presence(name: str, value: bytes | None) -> WorkerPresence | None:
    """A worker's heartbeat; None if there is none, or one that cannot be read."""
    try:
        return None if value is None else WorkerPresence.model_validate_json(value)
    except ValidationError as error:
        _log.warning("presence_unreadable", worker=name, error=str(error))
        return None
