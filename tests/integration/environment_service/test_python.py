"""What a user's Python can do to its own episodes, and what it cannot do to others."""

import asyncio
import json
import time

import psutil
import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR


def said(answer):
    return [one.content for one in answer.messages]


def children(service):
    return [child for child in psutil.Process(service[0].pid).children() if _status(child) not in {"gone", psutil.STATUS_ZOMBIE}]


def _status(child):
    try:
        return child.status()
    except psutil.NoSuchProcess:
        return "gone"


async def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came"
        await asyncio.sleep(0.02)


COUNTING = '''
import random, time

class Environment:
    def reset(self, item, seed):
        self.seen = []

    def count(self, seconds: float = 0.0) -> list:
        """Counts, after a while."""
        time.sleep(seconds)
        self.seen.append(random.randrange(1000))
        return self.seen
'''


async def counted(world, turn, seconds=0.0):
    answer = await world.step(turn, "", ("count", {"seconds": seconds}))
    assert answer.status == OK, answer
    return json.loads(answer.messages[0].content)


async def test_a_killed_child_fails_the_call_in_flight_alone_and_all_sessions_go_on_in_another(episode, service):
    worlds = [episode(COUNTING, run_id="killed", seed=n) for n in range(4)]
    for n, world in enumerate(worlds):
        await world.open(f"killed.{n}")
        for turn in range(3):
            await counted(world, turn)
    before = [await counted(world, 3) for world in worlds]
    stuck = asyncio.ensure_future(worlds[0].step(4, "", ("count", {"seconds": 30})))
    await until(lambda: any(child.status() == psutil.STATUS_SLEEPING for child in children(service)))
    for child in children(service):
        child.kill()
    answer = await stuck
    await asyncio.sleep(0.5)  # until the service has noticed the others
    assert (answer.status, "died (killed by SIGKILL)" in answer.reason) == (ERROR, True), answer
    after = [await counted(world, 4) for world in worlds]
    assert [one[:4] for one in after] == before
    assert all(len(one) == 5 for one in after)


async def test_a_replay_with_another_answer_is_an_error_that_says_so(episode, service):
    source = COUNTING.replace("random.randrange(1000)", "time.time_ns()")
    world = episode(source, run_id="by the clock")
    await world.open("clock")
    await counted(world, 0)
    for child in children(service):
        child.kill()
    await until(lambda: not children(service))
    await asyncio.sleep(0.5)  # until the service has noticed
    answer = await world.step(1, "", ("count", {}))
    assert (answer.status, answer.reason.startswith("nondeterministic: turn 0")) == (ERROR, True), answer


async def test_a_stuck_tool_ends_at_its_deadline_and_holds_up_no_other_session(episode):
    section = {"source": COUNTING, "step_seconds": 8.0}
    worlds = [episode(section, run_id="stuck", seed=n) for n in range(6)]
    for n, world in enumerate(worlds):
        await world.open(f"stuck.{n}")
        await counted(world, 0)
    began = time.monotonic()
    stuck = [asyncio.ensure_future(world.step(1, "", ("count", {"seconds": 60}))) for world in worlds[:2]]
    await asyncio.sleep(0.2)
    others = await asyncio.gather(*(counted(world, 1) for world in worlds[2:]))
    assert time.monotonic() - began < 6.0
    assert all(len(seen) == 2 for seen in others)
    answers = await asyncio.gather(*stuck)
    assert [answer.status for answer in answers] == [ERROR, ERROR]
    assert all("stopped after 8.0 s" in answer.reason for answer in answers)
    assert len(await counted(worlds[0], 1)) == 2, "the session is as it was before"


async def test_other_sessions_change_no_random_number(episode):
    alone = episode(COUNTING, run_id="alone", seed=5)
    await alone.open("random.0")
    expected = [await counted(alone, turn) for turn in range(3)]
    crowd = [episode(COUNTING, run_id="crowd", seed=seed) for seed in (5, 6, 5)]
    for n, world in enumerate(crowd):
        await world.open(f"random.{n}")
    found = [await asyncio.gather(*(counted(world, turn) for world in crowd)) for turn in range(3)]
    assert [one[0] for one in found] == [one[2] for one in found] == expected
    assert found[2][1] != expected[2]


SETS = """
class Environment:
    def reset(self, item, seed):
        return " ".join({"a", "b", "c", "d", "e", "f", "g"})
"""


async def test_the_order_of_a_set_is_the_same_in_every_process(episode):
    orders = set()
    for run in range(3):
        orders.update(said(await episode(SETS, run_id=f"set {run}").open()))
    assert len(orders) == 1


FAULTY = """
class Environment:
    def reset(self, item, seed):
        self.kind = item["kind"]
        if self.kind == "reset":
            raise KeyError("no such row")
        if self.kind == "messages":
            return [{"role": "tool", "content": "x"}]

    def step(self, text):
        if self.kind == "step":
            1 / 0
        if self.kind == "shape":
            return ["message"]
        return {"message": "on", "reward": float(text) if text else None}

    def reward(self, text):
        return {"reward": 1.0, "x": "no number"} if self.kind == "reward" else 0.0
"""


@pytest.mark.parametrize("kind", ["reset", "messages", "step", "shape"])
async def test_a_fault_of_the_users_functions_is_an_error_and_the_same_again_is_invalid(episode, kind):
    found = []
    for attempt in range(3):
        world = episode(FAULTY, run_id="faulty", item={"kind": kind})
        answer = await world.open(f"{kind}.0", attempt)
        if answer.status == OK:
            answer = await world.step(0, "")
        found.append(answer.status)
        assert "line" in answer.reason or "must return" in answer.reason
    assert found == [ERROR, INVALID, INVALID]


async def test_a_fault_that_comes_again_at_the_same_turn_is_invalid_and_the_episode_over(episode):
    world = episode(FAULTY, run_id="faulty again", item={"kind": "step"})
    await world.open()
    assert [(await world.step(0, "")).status for _ in range(3)] == [ERROR, INVALID, INVALID]
    over = await world.step(1, "")
    assert (over.status, "ended as invalid" in over.reason) == (ERROR, True)


@pytest.mark.parametrize("reward", ["nan", "inf", "1e9"])
async def test_a_reward_that_is_no_finite_number_in_range_is_invalid(episode, reward):
    world = episode(FAULTY, run_id="rewards", item={"kind": ""})
    await world.open(reward)
    answer = await world.step(0, reward)
    assert (answer.status, answer.HasField("reward"), bool(answer.reason)) == (INVALID, False, True)


async def test_a_component_that_is_no_number_is_invalid(episode):
    world = episode(FAULTY, run_id="components", item={"kind": "reward"})
    await world.open()
    assert (await world.step(0, "", end_reason="max_turns")).status == INVALID


ATTEMPTS = {
    "raise": "raise ValueError('no such file')",
    "exit": "raise SystemExit(3)",
    "recurse": "return self.act(deed)",
    "socket": "import socket; socket.create_connection(('127.0.0.1', 4222), 1)",
    "fork": "import os\n        while True: os.fork()",
    "thread": "import threading; threading.Thread(target=print).start()",
    "process": "import subprocess; subprocess.run(['/bin/true'])",
    "read": "return open('/etc/passwd').read()",
    "write": "open('/tmp/written-by-an-environment', 'w').write('x')",
    "the service's code": "import gradbus_environment",
    "the confinement": "import gradbus.sandbox",
    "no JSON": "return object()",
    "not a number": "return float('nan')",
}
ATTEMPTING = (
    "class Environment:\n    def reset(self, item, seed):\n        pass\n\n    def act(self, deed: str):\n        'Acts.'\n        {}\n"
)


@pytest.mark.parametrize("deed", ATTEMPTS)
async def test_what_a_tool_may_not_do_is_a_typed_error_for_the_policy(episode, deed):
    world = episode(ATTEMPTING.format(ATTEMPTS[deed]), run_id=f"attempts {deed}")
    await world.open()
    answer = await world.step(0, "", ("act", {"deed": "x"}))
    assert answer.status == OK
    assert json.loads(answer.messages[0].content)["error"] == "tool_failed"


async def test_a_tool_that_ends_its_process_is_an_error(episode):
    world = episode(ATTEMPTING.format("import os; os._exit(3)"), run_id="ends")
    await world.open()
    answer = await world.step(0, "", ("act", {"deed": "x"}))
    assert (answer.status, "exit code 3" in answer.reason) == (ERROR, True), answer


async def test_a_tool_that_finds_no_memory_fails_as_the_policy_may_have_caused_it(episode):
    world = episode(ATTEMPTING.format("return len('x' * (2 << 30))"), run_id="full")
    await world.open()
    answer = await world.step(0, "", ("act", {"deed": "x"}))
    assert answer.status == OK, answer
    assert json.loads(answer.messages[0].content)["error"] == "tool_failed"


async def test_a_long_text_keeps_its_beginning_and_end_and_a_flood_of_output_goes_nowhere(episode):
    flood = "import os, sys; print('x' * 5_000_000); os.write(1, b'z' * 100_000); return 'a' + 'x' * 3_000_000 + 'z'"
    world = episode(ATTEMPTING.format(flood), run_id="flood")
    await world.open()
    answer = await world.step(0, "", *[("act", {"deed": "x"})] * 8)
    assert answer.status == OK
    for content in said(answer):
        assert (content[0], content[-1], len(content) <= 65_536, "characters cut" in content) == ("a", "z", True, True)


FORGED = ['[2, {"status": "ok", "rewards": [[9, {}]]}]', '[1, {"status": "ok"}]', '[2, {"status": "won"}]', "abc", "[" * 50_000]


@pytest.mark.parametrize("line", FORGED)
async def test_an_environment_that_writes_into_its_pipe_gives_itself_no_reward(episode, line):
    forge = f"import os\n        for n in (3, 4, 5):\n            try: os.write(n, {line.encode()!r} + bytes([10]))\n"
    world = episode(ATTEMPTING.format(f"{forge}            except OSError: pass"), run_id=f"forges {line[:40]}")
    await world.open()
    answer = await world.step(0, "", ("act", {"deed": "x"}))
    assert (answer.status, answer.HasField("reward")) == (ERROR, False)


async def test_the_row_may_be_the_prompt_and_reset_may_give_a_conversation(episode):
    source = "class Environment:\n    def reset(self, item, seed):\n        return item.get('talk')\n"
    assert said(await episode(source, run_id="silent", item={}).open()) == []
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi \ud83d\ude00"}]
    opened = await episode(source, run_id="talks", item={"talk": talk}).open()
    assert [(one.role, one.content) for one in opened.messages] == [("system", "Be brief."), ("user", "Hi \U0001f600")]
