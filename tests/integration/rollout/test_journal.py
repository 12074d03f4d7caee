"""Journals of episodes in the real buffer: what another player reads, what it does itself, and who may write."""

import asyncio
import itertools
from dataclasses import dataclass, field
from unittest.mock import AsyncMock

import pytest

from gradbus.buffer import keys
from gradbus.control.runs import WorkerPresence
from gradbus.errors import SettingsError, SupersededError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.v1.environment_service_pb2 import (
    DETERMINISM_NONE,
    DETERMINISM_RECORDED,
    DETERMINISM_SEEDED,
    ENVIRONMENT_STATUS_ERROR,
    ENVIRONMENT_STATUS_OK,
    ENVIRONMENT_STATUS_UNKNOWN_SESSION,
    CloseResponse,
    DescribeResponse,
    OpenResponse,
    StepResponse,
)
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceServicer
from gradbus.v1.episode_pb2 import Message
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus.v1.task_pb2 import TaskKind
from gradbus_rollout import buffer_wait
from gradbus_rollout.buffer_wait import BufferWait
from gradbus_rollout.episodes.journal import JournalPlace, Journals

from .conftest import LETTERS, until

TURNS = 4
PRESENCE = WorkerPresence(worker="worker", role="rollout", incarnation="1")


@dataclass
class World(EnvironmentServiceServicer):
    """Its answers differ whenever it is asked; `stops` lets nobody in any more after so many answers."""

    determinism: int = DETERMINISM_RECORDED
    stops: int | None = None
    letters: str = LETTERS
    answers: object = field(default_factory=lambda: itertools.cycle(LETTERS[:7]))
    sessions: dict = field(default_factory=dict)
    """By episode, attempt and player: the answers so far."""
    executed: list = field(default_factory=list)
    opened: list = field(default_factory=list)
    closed: list = field(default_factory=list)
    over: set = field(default_factory=set)
    """Sessions whose last turn was answered."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    async def Describe(self, request, context):  # noqa: N802 - named by gRPC
        return DescribeResponse(name="world", digest="sha256:w", determinism=self.determinism)

    async def Open(self, request, context):  # noqa: N802 - named by gRPC
        name = f"{request.episode_id}/{request.attempt}/{request.player}"
        if name not in self.sessions and request.resume:
            return OpenResponse(status=ENVIRONMENT_STATUS_UNKNOWN_SESSION)
        self.opened.append(request)
        self.sessions.setdefault(name, [])
        return OpenResponse(status=ENVIRONMENT_STATUS_OK, session=name)

    async def Step(self, request, context):  # noqa: N802 - named by gRPC
        if request.session not in self.sessions:
            return StepResponse(status=ENVIRONMENT_STATUS_UNKNOWN_SESSION)
        answers = self.sessions[request.session]
        if request.turn == len(answers):
            if self.stops is not None and len(self.executed) >= self.stops:
                self.stopped.set()
                await self.resume.wait()
                if request.turn < len(answers):  # to another player, meanwhile
                    return answers[request.turn]
            if self.fails:
                return StepResponse(status=ENVIRONMENT_STATUS_ERROR, reason="it broke")
            self.executed.append(request.session)
            answers.append(self.answer(request))
            if request.is_last or answers[-1].done:
                self.over.add(request.session)
        return answers[request.turn] if request.turn + 1 == len(answers) else StepResponse(status=ENVIRONMENT_STATUS_ERROR)

    def answer(self, request):
        said = self.letters[request.turn] if self.determinism == DETERMINISM_SEEDED else next(self.answers)
        done = request.turn + 1 == TURNS
        messages = [] if done else [Message(role="user", content=said)]
        return StepResponse(status=ENVIRONMENT_STATUS_OK, messages=messages, done=done, reward=0.25)

    async def Close(self, request, context):  # noqa: N802 - named by gRPC
        self.closed.append(request.session)
        return CloseResponse()


def whole(groups):
    """What of the groups is trained."""
    assert {sample.episode.outcome.status for group in groups for sample in group.samples} == {REWARD_STATUS_OK}
    return [
        (sample.token_ids, sample.logprobs, [str(span) for span in sample.spans], sample.episode.outcome.reward)
        for group in groups
        for sample in group.samples
    ]


async def dies(playing, world):
    """Its player is gone as by SIGKILL: it says nothing to the world."""
    stopped = asyncio.create_task(world.stopped.wait())
    await asyncio.wait([stopped, playing], return_when=asyncio.FIRST_COMPLETED)
    assert not playing.done(), playing.result()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    world.stops, world.stopped = None, asyncio.Event()


@pytest.mark.parametrize("is_over", [True, False])
async def test_sessions_are_left_to_another_player_and_closed_at_the_end_of_the_run(play, buffer, is_over):
    world = World(stops=5)
    await dies(asyncio.create_task(play(world, buffer=buffer, is_over=is_over)), world)
    assert set(world.closed) == (set(world.sessions) if is_over else world.over)


async def test_a_fenced_player_leaves_the_session_that_fails_to_the_one_that_plays_on(play, buffer, run_id):
    world = World(stops=0)
    early = asyncio.create_task(play(world, buffer=buffer))
    await asyncio.wait_for(world.stopped.wait(), 60)
    await until(lambda: len(world.opened) == 6)
    journals = Journals(buffer, BufferWait(PRESENCE), is_read=True, is_over=AsyncMock(return_value=False))
    for index, n in itertools.product((0, 1), range(3)):
        await journals.take(JournalPlace(keys.journal(run_id, index), n), "later", f"train.4.{index}.{n}")
    world.fails, world.stops = True, None
    world.resume.set()
    assert await early == []
    assert world.closed == []


@pytest.mark.parametrize("stops", [0, 1, 5, 9])
async def test_another_player_reads_what_was_answered_and_goes_on_in_the_session(play, buffer, stops):
    world = World(stops=stops)
    await dies(asyncio.create_task(play(world, buffer=buffer)), world)
    over = {name.split("/")[0] for name in world.over}
    assert len(world.executed) == stops
    groups = await play(world, buffer=buffer)
    whole(groups)
    assert len(world.sessions) == 6, "no session is made anew"
    left = set(world.sessions) - set(world.closed)
    assert all(name.split("/")[0] in over for name in left), "only of an episode that was whole when its player died"
    assert len(world.closed) == len(set(world.closed))
    assert len(world.executed) == sum(map(len, world.sessions.values())), "nothing is executed twice"
    said = {name.split("/")[0]: [one.messages[0].content for one in answers if one.messages] for name, answers in world.sessions.items()}
    for group in groups:
        for sample in group.samples:
            turns = [message.content for turn in sample.episode.turns for message in turn.messages]
            assert turns == said[f"train.4.{sample.sample_id}"][: len(turns)], "what the first player was told counts"
            assert sample.episode.attempt == 0
    assert whole(await play(World(), buffer=buffer)) == whole(groups), "a whole journal needs no world"


async def test_without_the_session_the_episode_begins_anew_and_its_journal_with_it(play, buffer, run_id):
    world = World(stops=5)
    await dies(asyncio.create_task(play(world, buffer=buffer)), world)
    lost = {name.split("/")[0] for name in world.sessions if name not in world.closed}
    assert lost
    world.sessions.clear()
    groups = await play(world, buffer=buffer)
    whole(groups)
    anew = {f"train.4.{sample.sample_id}" for group in groups for sample in group.samples if sample.episode.attempt == 1}
    assert anew
    assert anew <= lost, "an episode whose end is recorded needs no session"
    for sample in groups[0].samples:
        numbers = [name.split(b".")[1] for name in await buffer.hkeys(keys.journal(run_id, 0)) if name.startswith(b"%d." % sample.n)]
        entries = {int(number) for number in numbers if number.isdigit()}
        assert entries == {sample.episode.attempt}, "no entry of the lost attempt is left"


async def test_a_seeded_world_is_asked_again_and_compared(play, buffer):
    world = World(DETERMINISM_SEEDED, stops=5)
    calm = whole(await play(World(DETERMINISM_SEEDED), buffer=None))
    await dies(asyncio.create_task(play(world, buffer=buffer, journal=True)), world)
    executed = len(world.executed)
    assert whole(await play(world, buffer=buffer, journal=True)) == calm
    assert len(world.executed) > executed
    assert len(world.sessions) > 6, "each player has sessions of its own"


async def test_other_answers_of_a_world_that_calls_itself_seeded_begin_the_episode_anew(play, buffer):
    world = World(DETERMINISM_SEEDED, stops=5)
    await dies(asyncio.create_task(play(world, buffer=buffer, journal=True)), world)
    other = World(DETERMINISM_SEEDED, letters="hgfedcba")
    groups = await play(other, buffer=buffer, journal=True)
    whole(groups)
    begun = {name.split("/")[0] for name, answers in world.sessions.items() if answers}
    anew = {f"train.4.{sample.sample_id}" for group in groups for sample in group.samples if sample.episode.attempt == 1}
    assert anew
    assert anew <= begun


@pytest.mark.parametrize(
    ("determinism", "section"), [(DETERMINISM_SEEDED, {}), (DETERMINISM_NONE, {}), (DETERMINISM_RECORDED, {"journal": False})]
)
async def test_nothing_is_recorded_where_nobody_wants_it(play, buffer, run_id, determinism, section):
    whole(await play(World(determinism), buffer=buffer, **section))
    assert await buffer.keys(keys.everything(run_id)) == []


async def test_two_players_at_once_leave_one_journal(play, buffer, run_id):
    world = World(stops=4)
    early = asyncio.create_task(play(world, buffer=buffer))
    await asyncio.wait_for(world.stopped.wait(), 60)
    known, late = len(world.opened), asyncio.create_task(play(world, buffer=buffer))
    await until(lambda: len(world.opened) > known)
    world.stops = None
    world.resume.set()
    first, second = await asyncio.gather(early, late)
    assert [len(group.samples) for group in [*first, *second]].count(3) == len(first) + len(second) >= 2
    whole([*first, *second])
    indexes = [group.index for group in [*first, *second]]
    assert sorted(indexes) == [0, 1], "the group of the player who was first is dropped"
    assert len(world.executed) == sum(map(len, world.sessions.values()))


async def test_held_out_rows_have_journals_of_their_own(play, buffer, run_id):
    whole(await play(World(), kind=TaskKind.TASK_KIND_EVALUATION, buffer=buffer))
    found = {key.decode() for key in await buffer.keys(keys.everything(run_id))}
    assert found == {keys.evaluation_journal(run_id, 4, index) for index in (0, 1)}
    await GroupStore(buffer, run_id, journaled=True).discard_evaluation(4, [0, 1])
    assert await buffer.keys(keys.everything(run_id)) == []


async def test_a_journal_goes_when_its_group_is_in_the_log(play, buffer, run_id):
    groups = await play(World(), buffer=buffer)
    store, log = GroupStore(buffer, run_id, journaled=True), ExperienceLog(buffer, run_id, journaled=True)
    await store.put(groups)
    assert len(await buffer.keys(keys.everything(run_id))) == 4
    await log.append(1, {0: LogEntry(index=0)})
    assert await buffer.exists(keys.journal(run_id, 0), keys.assembly(run_id, 0)) == 0
    assert await buffer.exists(keys.journal(run_id, 1), keys.assembly(run_id, 1)) == 2
    await store.discard([1])
    assert await buffer.exists(keys.journal(run_id, 1)) == 0
    journals = Journals(buffer, BufferWait(PRESENCE), is_read=True, is_over=AsyncMock())
    late = await journals.take(JournalPlace(keys.journal(run_id, 0), 0), "late", "train.4.0.0")
    await store.discard([0])
    with pytest.raises(SupersededError, match="another worker plays this episode"):
        await late.begin_anew()


async def test_a_corrupt_journal_is_removed(play, buffer, run_id):
    world = World(stops=5)
    await dies(asyncio.create_task(play(world, buffer=buffer)), world)
    key = keys.journal(run_id, 0)
    await buffer.hset(key, "0.0.0", b"no record")
    groups = await play(world, buffer=buffer)
    whole(groups)
    assert [sample.episode.attempt for sample in groups[0].samples] == [1, 0, 0]


async def test_a_full_buffer_is_waited_for_as_the_workers_trouble(play, buffer, monkeypatch):
    monkeypatch.setattr(buffer_wait, "_TROUBLE_SECONDS", 1.0)
    presence = WorkerPresence(worker="worker", role="rollout", incarnation="1")
    await buffer.config_set("maxmemory", 1)
    try:
        playing = asyncio.create_task(play(World(), presence=presence, buffer=buffer))
        await until(lambda: presence.trouble or playing.done())
        assert presence.trouble.startswith("the buffer is full (OutOfMemoryError: ")
        assert presence.trouble.endswith("cancel runs that hold much of it, or give it more memory")
    finally:
        await buffer.config_set("maxmemory", 0)
    whole(await playing)
    assert presence.trouble == ""


async def test_a_refusal_that_does_not_pass_ends_the_wait(play, buffer, run_id):
    await buffer.set(keys.journal(run_id, 0), "no hash")
    with pytest.raises(SettingsError, match=r"refuses a call of this worker \(ResponseError: WRONGTYPE .* start the stack again"):
        await play(World(), buffer=buffer)
