"""Programs against hidden tests, in real sandboxes: what they pass, what they cannot reach, and whose fault a failure is."""

import json

import pytest

from gradbus.sandbox.commands.run import NoSandboxError, SandboxError, found_level
from gradbus.v1 import reward_pb2
from gradbus_reward.graders import code

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR
TESTS = json.dumps([["2\n", "4\n"], ["3\n", "6"]])
DOUBLE = "Here it is:\n```python\nprint(2 * int(input()))\n```\nDone."


@pytest.fixture(autouse=True)
async def _sandbox():
    level, reason = await found_level()
    if level is None:
        pytest.skip(f"no sandbox here: {reason}")


def grader(**more):
    return {"type": "code", "seconds": 1.0, **more}


@pytest.mark.parametrize(
    ("program", "share"),
    [
        (DOUBLE, 1.0),
        ("print(4)", 0.5),
        ("print(2 * int(input())); raise SystemExit(1)", 0.0),
        ("no program", 0.0),
        ("", 0.0),
        ("n = int(input())\nwhile n == 3: pass\nprint(4)", 0.5),
        ("n = int(input())\nif n == 3: x = [0] * 10**10\nprint(4)", 0.5),
        ("n = int(input())\nwhile n == 3: print('x' * 10**6)\nprint(4)", 0.5),
        ("import os\nwhile True: os.fork()", 0.0),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", 0.0),
        ("import os\nopen('/proc/self/mem')\nprint(4)", 0.0),
    ],
)
async def test_a_program_is_paid_by_the_share_of_tests_that_it_passes(grader_scorer, ask, program, share):
    (result,) = await grader_scorer(grader()).score(ask(program, tests=TESTS), 60.0)
    assert (result.status, result.reward) == (OK, share)


async def test_no_process_of_a_program_finds_what_is_expected(grader_scorer, ask):
    program = (
        "import glob, os, sys\nprint(sys.argv, os.environ, [open(f, errors='replace').read() for f in glob.glob('**', recursive=True)])"
    )
    parts = {"found": grader(tests=json.dumps([["", "[a secret]"]])), "any": grader(tests=json.dumps([["", ""]]))}
    (result,) = await grader_scorer({"type": "multi", "graders": parts, "calculate_output": "found + any"}).score(ask(program), 60.0)
    assert (result.status, result.reward) == (OK, 0.0)


@pytest.mark.parametrize(
    ("program", "share"),
    [
        ("def f(a, b):\n    print('noise')\n    return [a, b]", 1.0),
        ("def f(a, b):\n    return (a, 2)", 0.5),
        ("def f(a, b):\n    return {1}", 0.0),
        ("def g(a, b):\n    return [a, b]", 0.0),
        ("if __name__ == '__main__':\n    input()\ndef f(a, b):\n    return [a, b]", 1.0),
    ],
)
async def test_a_function_is_called_with_the_arguments_of_each_test(grader_scorer, ask, program, share):
    tests = json.dumps([[[1, 2], [1, 2]], [[1, "x"], [1, "x"]]])
    (result,) = await grader_scorer(grader(style="call", function="f")).score(ask(program, tests=tests), 60.0)
    assert (result.status, result.reward) == (OK, share)


@pytest.mark.parametrize(
    ("program", "share"), [("def f(a):\n    return a", 1.0), ("def f(a):\n    return 3", 0.5), ("import os\nos._exit(0)", 0.0)]
)
async def test_statements_are_executed_after_the_program(grader_scorer, ask, program, share):
    (result,) = await grader_scorer(grader(style="assert")).score(ask(program, tests=["assert f(1) == 1", "assert f(3) == 3"]), 60.0)
    assert (result.status, result.reward) == (OK, share)


async def test_all_or_nothing(grader_scorer, ask):
    results = await grader_scorer(grader(needs_all=True)).score(ask(DOUBLE, "print(4)", tests=TESTS), 60.0)
    assert [result.reward for result in results] == [1.0, 0.0]


async def test_inputs_and_outputs_may_be_lists_of_their_own(grader_scorer, ask):
    (result,) = await grader_scorer(grader()).score(ask(DOUBLE, tests={"inputs": ["2", "3"], "outputs": ["4", "6"]}), 60.0)
    assert result.reward == 1.0


@pytest.mark.parametrize(
    "tests", ["no JSON", [], {}, [["1"]], [[1, "2"]], [["", ""]] * 65, [["", "x" * 70_000]] * 2, [["x" * (1 << 21), ""]]]
)
async def test_tests_that_are_none_are_the_rows_fault(grader_scorer, ask, tests):
    (result,) = await grader_scorer(grader()).score(ask("print(1)", tests=tests), 60.0)
    assert result.status == INVALID
    assert "test" in result.reason


@pytest.mark.parametrize(("error", "permanent"), [(SandboxError("it broke; try again"), False), (NoSandboxError("none here"), True)])
async def test_a_sandbox_that_breaks_is_an_error_and_no_reward(grader_scorer, ask, monkeypatch, error, permanent):
    async def breaks(_command, _level):
        raise error

    monkeypatch.setattr(code, "run_command", breaks)
    (result,) = await grader_scorer(grader()).score(ask("print(1)", tests=TESTS), 60.0)
    assert (result.status, result.permanent, result.reason) == (ERROR, permanent, str(error))


async def test_programs_for_which_no_time_is_left_are_scored_again_and_the_others_kept(grader_scorer, ask):
    slow = "import time\ntime.sleep(60)\nprint(1)"
    results = await grader_scorer(grader(seconds=20.0)).score(ask("print(4)", slow, slow + "#", slow + "##", tests=TESTS), 10.0)
    assert [(result.status, result.permanent) for result in results] == [(OK, False)] + [(ERROR, False)] * 3
    assert "no time was left" in results[1].reason


async def test_equal_programs_of_a_call_are_tried_once(grader_scorer, ask, monkeypatch):
    tried = []
    run = code.run_command

    async def counted(command, level):
        tried.append(command)
        return await run(command, level)

    monkeypatch.setattr(code, "run_command", counted)
    results = await grader_scorer(grader()).score(ask(DOUBLE, DOUBLE, "print(4)", DOUBLE, tests=TESTS, n=0), 60.0)
    assert ([result.reward for result in results], len(tried)) == ([1.0, 1.0, 0.5, 1.0], 2)


async def test_code_is_off_where_users_python_is(grader_scorer, ask):
    (result,) = await grader_scorer(grader(), python_graders=False).score(ask("print(1)", tests=TESTS), 60.0)
    assert (result.status, result.permanent) == (ERROR, True)
    assert "GRADBUS_PYTHON_GRADERS" in result.reason
