"""Programs against hidden tests, in real sandboxes: what they pass, what they cannot reach, and whose fault a failure is."""

import json

import pytest

from gradbus.sandbox.commands import run as sandbox_run
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
        ("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", 0.0),
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
    "tests",
    ["no JSON", [], {}, [["1"]], [[1, "2"]], [["", ""]] * 65, [["", "x" * 70_000]] * 2, [["", "é" * 35_000]] * 2, [["x" * (1 << 21), ""]]],
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
    programs = ["print(4)", *(f"{slow}#{n}" for n in range(12))]
    results = await grader_scorer(grader(seconds=12.0)).score(ask(*programs, tests=TESTS), 12.0)
    assert [(result.status, result.reward, result.reason) for result in results[:2]] == [(OK, 0.5, ""), (OK, 0.0, "")]
    assert (results[-1].status, results[-1].permanent) == (ERROR, False)
    assert "no time was left" in results[-1].reason


async def test_a_program_that_is_slow_by_the_clock_on_each_test_is_scored_by_those_that_it_ended(grader_scorer, ask):
    slow = "import time\nn = int(input())\ntime.sleep(n and 2)\nprint(n)"
    tests = [[str(n), str(n)] for n in range(20)]
    (result,) = await grader_scorer(grader(seconds=0.5)).score(ask(slow, tests=tests), 12.0)
    assert result.status == OK
    assert 1 / 20 <= result.reward < 0.5


async def test_parts_beyond_the_places_share_the_time_so_that_a_sample_is_scored_in_one_call(grader_scorer, ask):
    parts = {f"part{n}": grader(tests=TESTS) for n in range(5)}
    scorer = grader_scorer({"type": "multi", "graders": parts, "calculate_output": " + ".join(parts)})
    (result,) = await scorer.score(ask("import time\nn = int(input())\ntime.sleep(60 * (n == 3))\nprint(4)", tests=TESTS), 24.0)
    assert (result.status, result.reward) == (OK, 2.5)


async def test_no_program_is_tried_in_what_others_left_of_a_call(grader_scorer, ask):
    (result,) = await grader_scorer(grader()).score(ask(DOUBLE, tests=TESTS), 4.0)
    assert (result.status, result.permanent) == (ERROR, False)
    assert "no time was left" in result.reason


@pytest.mark.parametrize("letter", ["é", "語", "😀", "\x01", '"'])
async def test_any_letters_may_be_printed_up_to_the_same_number_of_bytes(grader_scorer, ask, letter):
    tests = [["", letter * (65_000 // len(letter.encode()))]] * 2
    program = f"def f():\n    return {tests[0][1]!r}\nif __name__ == '__main__':\n    print(f())"
    (result,) = await grader_scorer(grader()).score(ask(program, tests=tests), 60.0)
    assert (result.status, result.reward) == (OK, 1.0)
    called = [[[], text[: len(text) // 8]] for _, text in tests]
    program = f"def f():\n    return {called[0][1]!r}"
    (result,) = await grader_scorer(grader(style="call", function="f")).score(ask(program, tests=called), 60.0)
    assert (result.status, result.reward) == (OK, 1.0)


async def test_half_a_surrogate_is_a_value_like_others(grader_scorer, ask):
    program = "def f():\n    return chr(0xD800)"
    (result,) = await grader_scorer(grader(style="call", function="f")).score(ask(program, tests=[[[], "\ud800"]]), 60.0)
    assert (result.status, result.reward) == (OK, 1.0)


async def test_a_machine_without_sandboxes_is_a_permanent_error(grader_scorer, ask, monkeypatch):
    async def none(_levels):
        return None, "the kernel has none"

    monkeypatch.setattr(sandbox_run, "found_level", none)
    (result,) = await grader_scorer(grader()).score(ask("print(1)", tests=TESTS), 60.0)
    assert (result.status, result.permanent) == (ERROR, True)
    assert "the kernel has none" in result.reason


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
