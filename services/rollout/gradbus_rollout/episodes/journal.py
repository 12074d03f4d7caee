"""The journal of an episode: how it began, each turn as it was drawn, each answer, one entry after the other.

Whoever plays the episode reads the entries that are there in place of drawing and asking, and appends what comes after them. The buffer
takes entries of one player alone, the newest one, and of one attempt: two players leave one journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gradbus import crash_points
from gradbus.buffer import functions
from gradbus.errors import CorruptRecordError, EnvironmentFaultError, SupersededError
from gradbus.experience.records import seal, unseal_message
from gradbus.finish import WITHDRAWN
from gradbus.formats.tokens import pack_ids, unpack_ids
from gradbus.telemetry import PROCESS, get_logger
from gradbus.v1.environment_service_pb2 import OpenResponse, StepResponse
from gradbus.v1.journal_pb2 import DrawnTurn, JournalEntry
from gradbus.v1.sample_pb2 import Span
from gradbus_rollout.buffer_wait import BufferWait
from gradbus_rollout.engines.base import Completion, TokenSpan
from gradbus_rollout.episodes.gathered import Gathered

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """Where an episode's journal is: the key of its group, and the sample's n."""

    key: str
    n: int


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    place: JournalPlace
    arguments: tuple[str | int | bytes, ...]


class Journals:
    """The journals of a run. Calls of many episodes share their round trips and their syncs."""

    def __init__(self, client: Redis, buffer: BufferWait, *, is_read: bool, is_over: Callable[[], Awaitable[bool]]) -> None:
        """`is_read`: answers of a session that is gone cannot be had again, so they are read; else turns are repeated and compared.

        `is_over`: whether the run is, so that nobody goes on with its episodes.
        """
        self._client = client
        self._buffer = buffer
        self._gathered: Gathered[_Call, Any] = Gathered(self._called)
        self.is_read = is_read
        self.is_over = is_over

    async def take(self, place: JournalPlace, player: str, name: str) -> Journal:
        """The episode's journal, which from now on takes entries of this player alone; the first player's `name` of the episode stays."""
        found = await self.ask(functions.TAKE_JOURNAL, place, player, name)
        journal = Journal(self, place, player, found[0].decode(), int(found[1]))
        try:
            journal.recorded = [unseal_message(JournalEntry, entry, f"entry {n} of {name}'s journal") for n, entry in enumerate(found[2:])]
        except CorruptRecordError as error:
            _log.warning("corrupt_journal_removed", episode=name, error=str(error))
            await journal.begin_anew()
        return journal

    async def ask(self, function: str, place: JournalPlace, *arguments: str | int | bytes) -> Any:
        """Calls a function of the buffer, and waits as long as the buffer is away or full. Raises SupersededError and SettingsError."""
        while True:
            answer = await self._gathered.ask(_Call(function, place, arguments))
            if not isinstance(answer, RedisError | OSError):
                self._buffer.came_back()
                return answer
            if str(answer).startswith("FENCED"):
                raise SupersededError(f"another worker plays this episode ({answer}); its group is not stored from here")
            await self._buffer.wait(answer)

    async def _called(self, calls: Sequence[_Call]) -> Sequence[Any]:
        """An answer to each call, or its error."""
        try:
            async with self._client.pipeline(transaction=False) as pipe:
                for call in calls:
                    pipe.fcall(call.function, 1, call.place.key, call.place.n, *call.arguments)
                return await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            return [error for _ in calls]


@dataclass(slots=True)
class Journal:
    """Of one episode, as one player reads and continues it. Without `journals` nothing is recorded."""

    journals: Journals | None = None
    place: JournalPlace = JournalPlace("", 0)
    player: str = ""
    name: str = ""
    """Of the episode, as its environment knows it."""
    attempt: int = 0
    recorded: list[JournalEntry] = field(default_factory=list)
    """Entries of this attempt that others wrote."""
    _next: int = 0

    @property
    def is_read(self) -> bool:
        """Whether another player could go on only in the session that is open."""
        return self.journals is not None and self.journals.is_read

    async def is_inherited(self) -> bool:
        """Whether a player that stops leaves the session to another one: it is read, and the run goes on."""
        return self.journals is not None and self.journals.is_read and not await self.journals.is_over()

    async def begin_anew(self) -> None:
        """The attempt failed: removes its entries. Raises SupersededError, as all methods do."""
        if self.journals is None:
            self.attempt += 1
        else:
            self.attempt = int(await self.journals.ask(functions.BEGIN_ANEW, self.place, self.player, self.attempt))
        self.recorded, self._next = [], 0

    async def opened(self, ask: Callable[[], Awaitable[OpenResponse]]) -> OpenResponse:
        """How the episode began."""
        if (entry := self._read("opened")) is not None:
            return entry.opened
        answer = await ask()
        await self._write(JournalEntry(opened=answer))
        return answer

    async def drawn(self, seed: int, draw: Callable[[], Awaitable[Completion | None]]) -> Completion | None:
        """The next turn, which has this seed; None: it was withdrawn, which is recorded too."""
        if (entry := self._read("drawn")) is not None:
            if entry.drawn.seed != seed:
                raise EnvironmentFaultError(
                    "the episode's journal has a turn with another seed; it is removed, and the episode begins anew"
                )
            return None if entry.drawn.finish == WITHDRAWN else _completion(entry.drawn)
        completion = await draw()
        await self._write(JournalEntry(drawn=_drawn_turn(completion, seed)))
        return completion

    async def answered(self, ask: Callable[[], Awaitable[StepResponse]]) -> StepResponse:
        """The answer to the newest turn."""
        if (entry := self._read("answered")) is not None:
            return entry.answered
        answer = await ask()
        crash_points.reached("before-answered")
        await self._write(JournalEntry(answered=answer))
        return answer

    def _read(self, kind: str) -> JournalEntry | None:
        if self._next >= len(self.recorded):
            return None
        entry = self.recorded[self._next]
        if entry.WhichOneof("entry") != kind:
            raise EnvironmentFaultError(
                f"entry {self._next} of the episode's journal is not {kind}; it is removed, and the episode begins anew"
            )
        self._next += 1
        PROCESS.count("gradbus.journal.entries", 1, {"gradbus.journal.use": "read"})
        return entry

    async def _write(self, entry: JournalEntry) -> None:
        if self.journals is not None:
            record = seal(entry.SerializeToString())
            await self.journals.ask(functions.RECORD, self.place, self.player, self.attempt, self._next, record)
            self._next += 1
            PROCESS.count("gradbus.journal.entries", 1, {"gradbus.journal.use": "written"})
        crash_points.reached(f"after-{entry.WhichOneof('entry')}")


def _drawn_turn(completion: Completion | None, seed: int) -> DrawnTurn:
    if completion is None:
        return DrawnTurn(finish=WITHDRAWN, seed=seed)
    spans = [Span(start=span.start, end=span.end, version=span.version, trainable=True) for span in completion.spans]
    return DrawnTurn(
        token_ids=pack_ids(completion.token_ids), logprobs=completion.logprobs, spans=spans, finish=completion.finish, seed=seed
    )


def _completion(turn: DrawnTurn) -> Completion:
    spans = tuple(TokenSpan(span.start, span.end, span.version) for span in turn.spans)
    return Completion(unpack_ids(turn.token_ids), turn.logprobs, spans, "length" if turn.finish == "length" else "stop")
