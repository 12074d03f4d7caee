"""How many sessions and children there are, and when they end."""

import asyncio
import json

import psutil

from gradbus.v1 import environment_service_pb2 as pb
from gradbus_environment import registry as registry_module
from gradbus_environment import runs
from gradbus_environment.contract import Move, Opening

SOURCE = json.dumps({"source": "class Environment:\n    def reset(self, item, seed):\n        self.n = 0\n\n    def step(self, text):\n"
                     "        self.n += 1\n        return {'message': str(self.n)}\n"})  # fmt: skip


def opening(n, run_id="run"):
    return Opening(run_id, f"train.0.0.{n}", 0, "{}", 1)


def move(turn):
    return Move(turn, {"text": "on", "calls": [], "finish": "stop"}, is_last=False, end_reason="")


async def opened(registry, n=0, run_id="run"):
    async with registry.use(run_id, SOURCE) as run:
        name, answer = await run.open(opening(n, run_id), 30.0)
        assert answer.status == "ok", answer
        return run, name


async def count(run, name, turn):
    answer = await run.step(name, move(turn), 30.0)
    assert answer.status == "ok", answer
    return [one.content for one in answer.messages]


def processes(but=()):
    """This process's living children, less those that were there before: servers of other tests may end meanwhile."""
    return [child for child in psutil.Process().children() if child not in but and child.status() != psutil.STATUS_ZOMBIE]


async def test_a_run_has_two_children_however_many_sessions_and_others_only_at_need(registry):
    before, made = processes(), registry()
    entered = [await opened(made, n) for n in range(6)]
    assert len(processes(before)) == 2
    assert await asyncio.gather(*(count(run, name, 0) for run, name in entered)) == [["1"]] * 6
    await asyncio.gather(*(run.close(name) for run, name in entered))
    assert entered[0][0].is_empty


async def test_between_calls_a_child_computes_nothing(registry):
    before, made = processes(), registry(children=1)
    run, name = await opened(made)
    await asyncio.gather(*(count(*entered, 0) for entered in [(run, name), await opened(made, 1)]))
    (child,) = processes(before)
    await asyncio.sleep(0.1)
    assert child.status() == psutil.STATUS_STOPPED


async def test_idle_sessions_end_and_then_the_children_of_the_run(registry, monkeypatch):
    monkeypatch.setattr(registry_module, "IDLE_SECONDS", 0.2)
    before, made = processes(), registry(session_seconds=0.2)
    run, name = await opened(made)
    assert await count(run, name, 0) == ["1"]
    assert not await made.close_idle(), "it was used just now"
    await asyncio.sleep(0.3)
    assert await made.close_idle()
    assert not run.has(name)
    assert not processes(before)


async def test_beyond_the_number_of_all_runs_children_a_child_that_computes_nothing_makes_room(registry):
    before, made = processes(), registry(max_children=1)
    first, second = await opened(made, run_id="first"), await opened(made, run_id="second")
    for turn in range(3):
        assert await count(*first, turn) == await count(*second, turn) == [str(turn + 1)]
    assert len(processes(before)) == 1


async def test_a_run_has_no_more_sessions_than_the_limit(registry, monkeypatch):
    monkeypatch.setattr(runs, "MAX_SESSIONS", 2)
    made = registry()
    run, name = await opened(made, 0)
    await opened(made, 1)
    _, answer = await run.open(opening(2), 30.0)
    assert (answer.status, answer.is_away, "as many as it may" in answer.reason) == ("error", True, True)
    await run.close(name)
    await opened(made, 2)


async def test_two_players_of_one_episode_have_sessions_of_their_own(registry):
    made = registry()
    async with made.use("run", SOURCE) as run:
        names = []
        for player in ("one", "other"):
            name, answer = await run.open(Opening("run", "train.0.0.0", 0, "{}", 1, player), 30.0)
            assert answer.status == "ok", answer
            names.append(name)
        assert len(set(names)) == 2
        assert await count(run, names[0], 0) == await count(run, names[1], 0) == ["1"]
        await run.close(names[0])
        assert await count(run, names[1], 1) == ["2"]


async def test_sessions_of_one_name_in_two_runs_have_nothing_in_common(registry):
    made = registry()
    (one, name), (other, another) = await opened(made, run_id="one"), await opened(made, run_id="other")
    assert name != another
    async with made.of_session("other", name) as found:
        assert found is None
    await count(one, name, 0)
    assert await count(other, another, 0) == ["1"]


async def test_a_service_that_starts_again_knows_no_session(stub):
    answer = await stub.Step(pb.StepRequest(run_id="run", session="of the last life", turn=3), timeout=60)
    assert answer.status == pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION
    assert "open the episode again" in answer.reason


async def test_opens_of_one_episode_at_once_are_one_session(registry):
    made = registry()
    async with made.use("run", SOURCE) as run:
        answers = await asyncio.gather(*(run.open(opening(0), 30.0) for _ in range(5)))
    assert len({name for name, _ in answers}) == 1
    await run.close(answers[0][0])
    assert run.is_empty
