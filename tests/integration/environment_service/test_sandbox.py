"""Environments whose tools execute the policy's code, and whose reward runs hidden tests."""

import asyncio
import base64
import json
from pathlib import Path

import grpc
import psutil
import pytest

from gradbus.sandbox.commands.request import Command
from gradbus.sandbox.commands.run import found_level
from gradbus.v1 import environment_service_pb2 as pb
from gradbus_environment.settings import EnvironmentSettings
from gradbus_environment.worlds.sandboxes import Commands

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
pytestmark = pytest.mark.skipif(asyncio.run(found_level())[0] is None, reason="this kernel gives no namespaces")

CODING = '''
import secrets

TESTS = """
import subprocess, sys
passed = 0
for n in range(5):
    done = subprocess.run([sys.executable, "-I", "solution.py"], input=str(n), capture_output=True, text=True)
    passed += done.stdout.strip() == str(n * n)
print(sys.argv[1], passed)
"""

class Environment:
    """Write solution.py, which reads a number and prints its square."""

    def reset(self, item, seed):
        self.files = {"readme": "squares"}

    def write(self, path: str, content: str) -> str:
        """Writes a file."""
        self.files[path] = content
        return "written"

    def execute(self, code: str) -> dict:
        """Executes Python in a folder with the files."""
        done = self.sandbox.run(["python", "-c", code], files=self.files, seconds=1, keep=True)
        if done.end == "exited":
            self.files = done.files
        return {"end": done.end, "code": done.code, "stdout": done.stdout, "stderr": done.stderr[-200:], "files": sorted(self.files)}

    def reward(self, text):
        word = secrets.token_hex()
        done = self.sandbox.run(["python", "-I", "-", word], files=self.files, stdin=TESTS, seconds=2)
        said = done.stdout.split()
        return int(said[1]) / 5 if len(said) == 2 and said[0] == word else 0.0
'''


def said(answer):
    return [one.content for one in answer.messages]


def coding(run_id):
    return {"section": {"source": CODING, "sandbox": "namespaces"}, "run_id": run_id}


async def executed(world, turn, code):
    answer = await world.step(turn, "", ("execute", {"code": code}))
    assert answer.status == OK, answer
    return json.loads(answer.messages[0].content)


async def rewarded(world, turn):
    answer = await world.step(turn, "done", end_reason="max_turns")
    assert answer.status == OK, answer
    return answer.reward


async def test_a_tool_executes_code_and_the_files_go_on_from_call_to_call(episode):
    world = episode(**coding("files"))
    assert (await world.describe()).sandbox == "namespaces"
    await world.open()
    found = await executed(world, 0, "open('solution.py', 'w').write('print(int(input()) ** 2)'); print(open('readme').read())")
    assert found == {"end": "exited", "code": 0, "stdout": "squares\n", "stderr": "", "files": ["readme", "solution.py"]}
    assert (await executed(world, 1, "while True: pass"))["end"] == "time"
    assert await rewarded(world, 2) == 1.0


async def test_a_policy_that_waits_cannot_fail_its_episode(episode):
    world = episode({"source": CODING, "sandbox": "namespaces", "step_seconds": 6.0}, run_id="waiting")
    await world.open("waiting.0")
    sleep = ("execute", {"code": "import time; time.sleep(60)"})
    answer = await world.step(0, "", *[sleep] * 4)
    assert answer.status == OK, answer
    assert [json.loads(one)["end"] for one in said(answer)] == ["time"] * 4


CHEATS = {
    "nothing": "",
    "a constant": "print(4)",
    "output of the tests": "print(0); print('0 5', flush=True)",
    "the tests' own output": "import os\nfor n in range(3, 64):\n    try: os.write(n, b'x 5\\n')\n    except OSError: pass",
    "their file": "import glob\nprint(*(open(one).read() for one in glob.glob('/work/*') + glob.glob('/tmp/*')))",
    "their memory": "import os\nprint(open(f'/proc/{os.getppid()}/mem').read())",
    "their arguments": "import os\nprint(open(f'/proc/{os.getppid()}/cmdline').read().split()[-1], 5)",
    "end of the tests": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_hidden_tests_are_neither_read_nor_answered_for(episode, cheat):
    world = episode(**coding("cheats"))
    await world.open(f"cheat.{cheat}")
    await world.step(0, "", ("write", {"path": "solution.py", "content": CHEATS[cheat]}))
    assert await rewarded(world, 1) == (0.2 if cheat == "a constant" else 0.0)


async def test_modules_in_the_policys_folder_are_not_those_of_the_tests(episode):
    world = episode(**coding("modules"))
    await world.open("modules.0")
    forged = "import sys; print(sys.argv[1], 5); raise SystemExit"
    for turn, name in enumerate(("subprocess.py", "sitecustomize.py", "usercustomize.py")):
        await world.step(turn, "", ("write", {"path": name, "content": forged}))
    assert await rewarded(world, 3) == 0.0


async def test_a_process_that_the_policy_left_sees_no_later_command(episode, service):
    world = episode(**coding("daemon"))
    await world.open("daemon.0")
    watch = "while True: open('seen', 'a').write(str(os.listdir('.'))); time.sleep(.01)"
    daemon = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    {watch}"
    await executed(world, 0, daemon)
    found = await executed(world, 1, "import time; time.sleep(.2); print(open('seen').read().count('solution'))")
    assert found["stdout"] in {"0\n", ""}
    programs = [" ".join(one.cmdline()) for one in psutil.Process(service[0].pid).children(recursive=True)]
    assert [program for program in programs if "launch" in program] == []


REQUESTS = '''
class Environment:
    def reset(self, item, seed):
        self.seen = []

    def ask(self, kind: str) -> str:
        """Asks for what no sandbox takes."""
        if kind == "path":
            self.sandbox.run(["true"], files={"../x": ""})
        if kind == "text":
            self.sandbox.run("rm -rf /")
        if kind == "time":
            self.sandbox.run(["true"], seconds=10_000)
        return self.sandbox.run(["sh", "-c", "cat; exit 3"], stdin=kind).stdout

    def reward(self, text):
        return 0.0
'''


@pytest.mark.parametrize(
    ("kind", "reason"), [("path", "is no relative path"), ("text", "a list of texts"), ("time", "seconds are at most")]
)
async def test_what_no_sandbox_takes_is_told_to_the_policy(episode, kind, reason):
    world = episode({"source": REQUESTS, "sandbox": "namespaces"}, run_id="requests")
    await world.open(f"requests.{kind}")
    answer = await world.step(0, "", ("ask", {"kind": kind}))
    assert (answer.status, reason in answer.messages[0].content) == (OK, True), answer
    assert (await world.step(1, "", ("ask", {"kind": "ü"}))).messages[0].content == "ü"


async def test_without_a_sandbox_the_first_command_fails_the_episode(episode):
    world = episode(REQUESTS, run_id="no sandbox")
    assert (await world.describe()).sandbox == ""
    await world.open("none.0")
    answer = await world.step(0, "", ("ask", {"kind": "x"}))
    assert (answer.status, 'set sandbox = "namespaces"' in answer.reason) == (ERROR, True), answer


async def test_gvisor_is_refused_with_what_to_do(episode):
    with pytest.raises(grpc.aio.AioRpcError, match="runtimeClassName") as refused:
        await episode({"source": REQUESTS, "sandbox": "gvisor"}, run_id="gvisor").describe()
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_service_in_gvisor_meets_the_demand_and_still_confines_each_command(monkeypatch):
    monkeypatch.setenv("GRADBUS_IN_GVISOR", "true")
    sandboxes = EnvironmentSettings().capacity.sandboxes
    inside = Commands(sandboxes, "gvisor")
    assert await inside.confinement() == f"{await inside.level()} in gVisor"
    asked = Command(("cat",), stdin=b"said").document()
    async with asyncio.timeout(30) as limit:
        outcome = await inside.execute(asked, limit)
    assert base64.b64decode(outcome["outcome"]["stdout"]) == b"said", outcome


FORGE = """import os
        for n in (3, 4, 5):
            try: os.write(n, b'[1, {"command": 7}]' + bytes([10]))
            except OSError: pass
        if kind =="""
FORGING = REQUESTS.replace("if kind ==", FORGE, 1)


async def test_a_child_that_asks_for_what_is_no_command_fails_itself_alone(episode):
    forging, honest = episode({"source": FORGING, "sandbox": "namespaces"}, run_id="forging"), episode(**coding("honest"))
    await forging.open("forging.0")
    await honest.open("honest.0")
    answer = await forging.step(0, "", ("ask", {"kind": "x"}))
    assert answer.status != INVALID
    assert (await executed(honest, 0, "print(1)"))["stdout"] == "1\n"


EXAMPLE = Path(__file__).parents[3] / "examples/code"
SOLUTIONS = {
    "maximum": "print(max(map(int, input().split())))",
    "reverse": "print(*input().split()[::-1])",
    "balance": "text = input()\nwhile '()' in text: text = text.replace('()', '')\nprint('no' if text else 'yes')",
    "primes": "n, f = int(input()), 2\nwhile n > 1:\n    if n % f: f += 1\n    else: print(f, end=' '); n //= f",
}
FORGED = """import os; os.write(1, b'x ["4"]'); os.kill(os.getppid(), 9)"""


@pytest.mark.parametrize("row", (EXAMPLE / "tasks.jsonl").read_text().splitlines())
async def test_the_example_pays_what_solves_the_hidden_examples_and_nothing_else(episode, row):
    item = json.loads(row)
    section = {"source": (EXAMPLE / "environment.py").read_text(), "sandbox": "namespaces"}
    for n, (program, expected) in enumerate([(SOLUTIONS[item["prompt"]], 1.0), (FORGED, 0.0), ("", 0.0)]):
        world = episode(section, run_id="example", item=item)
        opened = await world.open(f"example.{item['prompt']}.{n}")
        assert all(repr(given) in opened.messages[0].content for given, _ in item["shown"])
        await world.step(0, "", ("write", {"path": "solution.py", "content": program}))
        tested = (await world.step(1, "", ("test", {}))).messages[0].content
        assert tested.count(": right") == (len(item["shown"]) if expected else 0)
        refused = await world.step(2, "", *[("write", {"path": path, "content": ""}) for path in ("../x", "solution.py/x", "a" * 300)])
        assert all("tool_failed" in one for one in said(refused))
        answer = await world.step(3, "done", end_reason="max_turns")
        assert (answer.reward, answer.components["solved"]) == (expected, expected)
