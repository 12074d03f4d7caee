"""What `gradbus env check` finds in environments by the environment service itself."""

import asyncio
import itertools
import json
import random
import time
from pathlib import Path

import pytest

from gradbus.environment_check import Checked, check_environment
from gradbus.environment_check.service import single_service
from gradbus.rpc import open_channel
from gradbus.spec.sections import EnvironmentSpec
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

ROOT = Path(__file__).parents[3]
WORLD = '''
import os, random, secrets, time

COUNT = [0]
DRAWN = random.random()

class Thing:
    pass

class Environment:
    def reset(self, item, seed):
        self.seen = []
        COUNT[0] += 1
        return "Begin."

    def look(self, at: int, twice: bool = False) -> str:
        """Says something."""
        return str({expression})

    def reward(self, text):
        return float(len(text) % 7)
'''
SEEDED = ["at * 2", "random.random()", "sorted(self.seen)", "{'a', 'b', 'c', 'd'}", "random.choice(range(at or 1))"]
UNSEEDED = [
    "time.time_ns()",
    "int(time.time())",
    "random.SystemRandom().random()",
    "os.urandom(4)",
    "secrets.token_hex(4)",
    "id(self)",
    "object()",
    "hash(Thing())",
    "[id(x) for x in {Thing() for _ in range(20)}]",
    "DRAWN",
    "COUNT[0]",
    "random.Random().random()",
    "os.getpid()",
]


@pytest.fixture(scope="module")
def running():
    """The service of this module's checks, with the loop that it lives in."""
    with asyncio.Runner() as runner:
        service = single_service("environment")
        yield runner, runner.run(service.__aenter__())
        runner.run(service.__aexit__(None, None, None))


@pytest.fixture
def check(running):
    """Checks one environment and gives the report."""
    runner, service = running

    async def checked(section, items, episodes, scored):
        channel = open_channel(service.address, service.token)
        try:
            return await check_environment(EnvironmentServiceStub(channel), Checked(EnvironmentSpec(**section), items, episodes, scored))
        finally:
            await channel.close()

    return lambda section, items=({},), episodes=6, scored=False: runner.run(checked(section, items, episodes, scored))


def world(expression):
    return {"source": WORLD.replace("{expression}", expression)}


@pytest.mark.parametrize("expression", SEEDED)
def test_a_seeded_environment_passes(check, expression):
    report = check(world(expression))
    assert (report.problems, report.difference) == ([], None)
    assert report.calls > 0
    assert [tool["name"] for tool in report.tools] == ["look"]


@pytest.mark.parametrize("expression", UNSEEDED)
def test_what_is_no_function_of_the_seed_is_found_with_the_call_that_shows_it(check, expression):
    report = check(world(expression))
    assert [problem for problem in report.problems if "had another answer in another process" in problem] == report.problems
    assert (report.difference.field, report.difference.where.startswith("turn")) == ("messages", True), report.difference
    assert "look" in report.difference.where
    assert report.difference.first != report.difference.second


def test_a_reward_that_differs_is_found(check):
    report = check({"source": WORLD.replace("{expression}", "at").replace("float(len(text) % 7)", "time.time_ns() % 1000 / 7")})
    assert report.difference.field in {"reward", "components"}


class OverHttp:
    """A world whose server declares what a test says."""

    def __init__(self, draw, **described):
        self.draw, self.described, self.opened = draw, described, 0

    def __call__(self, method, path, body):
        return getattr(self, path.strip("/"))(body)

    def describe(self, _):
        return {"name": "over http", "tools": [], **self.described}

    def open(self, body):
        self.opened += 1
        return {"session": f"s{self.opened}"}

    def step(self, body):
        return {"messages": [{"role": "user", "content": str(self.draw())}], "reward": 1.0}

    def close(self, body):
        return {}


def test_a_server_that_calls_itself_seeded_and_is_not_is_found(check, serve_json):
    numpy = pytest.importorskip("numpy")
    report = check({"service": serve_json(OverHttp(numpy.random.default_rng().random, determinism="seeded"))})
    assert report.difference.field == "messages"
    assert "no random numbers of its own seeding" in report.problems[0]


def test_a_server_that_does_not_call_itself_seeded_may_differ(check, serve_json):
    report = check({"service": serve_json(OverHttp(random.Random(0).random))})
    assert report.difference is not None
    assert report.problems == []
    assert "had another answer" in report.notes[0]


def test_a_server_that_could_call_itself_seeded_is_told_so(check, serve_json):
    report = check({"service": serve_json(OverHttp(lambda: "on"))})
    assert (report.difference, report.problems) == (None, [])
    assert '"determinism": "seeded"' in report.notes[0]


def test_a_server_that_fails_now_and_then_has_a_problem_and_no_difference(check, serve_json):
    asked = itertools.count()

    class Failing(OverHttp):
        def step(self, body):
            return {"status": "error", "reason": "no disk"} if next(asked) > 20 else super().step(body)

    report = check({"service": serve_json(Failing(lambda: "on", determinism="seeded"))})
    assert (report.difference, "no disk" in report.problems[0]) == (None, True)
    assert not any("another answer" in problem for problem in report.problems)


@pytest.mark.slow  # it waits twice for a server that may be starting
def test_nobody_at_the_address_is_a_problem(check, free_port):
    report = check({"service": f"http://127.0.0.1:{free_port()}/world"})
    assert "it cannot be used" in report.problems[0]
    assert report.document()["determinism"]["found"] == "unknown"


def test_faults_that_a_policy_may_not_cause_are_problems(check):
    source = WORLD.replace("{expression}", "at").replace("float(len(text) % 7)", "float(text)")
    report = check({"source": source})
    assert any("reward() raised ValueError" in problem for problem in report.problems), report.problems


def test_an_episode_without_a_reward_is_a_problem(check):
    source = 'class Environment:\n    def reset(self, item, seed):\n        return "x"\n'
    (problem,) = check({"source": source}).problems
    assert problem == (
        "an episode ended without any reward, which masks its sample; return one from step() or reward(), or check with "
        "--scored if the run has a [reward]"
    )
    assert check({"source": source}, scored=True).problems == []


def mcp_server(method, path, body):
    tools = [{"name": "add", "inputSchema": {"type": "object"}}]
    results = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "sums"}},
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "3"}]},
    }
    return {"jsonrpc": "2.0", "id": body.get("id"), "result": results.get(body["method"], {})}


def test_an_mcp_server_need_not_give_rewards(check, serve_json):
    service = f"mcp+{serve_json(mcp_server)}"
    report = check({"service": service}, episodes=2)
    assert (report.problems, report.rewards) == ([], None)
    assert "a run with it needs a [reward]" in report.notes[0]
    assert not any("[reward]" in note for note in check({"service": service}, episodes=2, scored=True).notes)


def test_a_source_that_cannot_be_used_is_a_problem(check):
    report = check({"source": "class Environment:\n    pass\n"})
    (problem,) = report.problems
    assert problem.startswith("it cannot be used: the environment does not load: the source defines no class Environment")
    assert report.document()["usable"] is False


def test_a_tool_that_raises_or_says_much_is_noted(check):
    report = check(world("'x' * 70_000"))
    assert "were cut" in report.notes[0]
    assert report.longest_message == 65_536
    failing = check(world("1 // 0"))
    assert "tools raised" in failing.notes[0]
    assert "ZeroDivisionError" in failing.notes[0]
    assert failing.problems == []


def test_rows_are_taken_in_turn(check):
    source = WORLD.replace('return "Begin."', 'return item["word"]').replace("{expression}", "at")
    assert check({"source": source}, [{"word": "a"}, {"word": "b"}], episodes=3).problems == []
    assert "reset() raised KeyError" in check({"source": source}, [{"word": "a"}, {}], episodes=3).problems[0]


def test_a_check_takes_no_more_than_five_seconds_of_this_machine(check):
    began = time.process_time()
    check(world("os.urandom(4)"), episodes=8)
    assert time.process_time() - began < 5.0


@pytest.fixture
def gradbus(commands):
    return lambda *arguments: commands.run("env", "check", *arguments)


def test_the_command_says_what_it_found_and_ends_with_0_or_1(gradbus, tmp_path):
    good = gradbus(ROOT / "examples/guess/environment.py", "--item", '{"letter": "c"}', "--json")
    assert good.returncode == 0, good.stderr
    found = json.loads(good.stdout)
    assert (found["usable"], found["determinism"]) == (True, {"declared": "seeded", "found": "seeded"})
    (tmp_path / "clock.py").write_text(WORLD.replace("{expression}", "time.time_ns()"))
    bad = gradbus(tmp_path / "clock.py", "--episodes", "3")
    assert bad.returncode == 1
    assert "look(at: integer, twice: boolean)  Says something." in bad.stdout
    assert "problem    the same calls had another answer in another process" in bad.stdout
    assert bad.stdout.endswith("not usable as it is\n")


def test_an_environment_that_needs_a_row_is_told_how_to_get_one(gradbus):
    shown = gradbus(ROOT / "examples/guess/environment.py")
    assert shown.returncode == 1
    assert "give one of your dataset with --item or --data" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "give a Python file, or an address with ://"),
        (["http://127.0.0.1:1", "--item", "[1]"], "a row is a JSON object"),
        (["http://127.0.0.1:1", "--item", "{"], "not JSON"),
        (["http://127.0.0.1:1", "--item", "{}", "--data", "rows.jsonl"], "leave one out"),
        (["http://127.0.0.1:1", "--data", "rows.jsonl"], "give a JSON Lines file"),
    ],
)
def test_arguments_that_cannot_be_used_end_with_2(gradbus, arguments, said):
    refused = gradbus(*arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
