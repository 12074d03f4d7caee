"""The runner of `make gpu-check`: deadlines, verdicts, and a report that is valid at any time. The parts are made by the tests."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def gpu_check(monkeypatch, tmp_path):
    """The package, with the test's own folder for parts."""
    folders = [str(BENCHMARKS), str(tmp_path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a run that is killed leaves its scratch folder
    monkeypatch.syspath_prepend(BENCHMARKS)
    from gpu_check import results, runner

    return runner, results


@pytest.fixture
def part(gpu_check, tmp_path):
    """Makes a part whose `run` has this body."""
    runner, _ = gpu_check

    def make(name, body, seconds=60.0):
        (tmp_path / f"part_{name}.py").write_text("def run(context):\n" + textwrap.indent(textwrap.dedent(body), "    "))
        return runner.Part(name, f"part_{name}", seconds)

    return make


@pytest.fixture
def check(gpu_check, tmp_path):
    """Runs parts, in dry mode unless asked otherwise; the report as it is on disk."""
    runner, _ = gpu_check
    out = tmp_path / "out" / "report.json"

    def run(*parts, **options):
        runner.run(parts, runner.Options(out, **{"dry": True} | options))
        return json.loads(out.read_text())

    return run


def wait_until_gone(file):
    """Returns when the process whose number is in the file has ended; the test's timeout is the deadline."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(int(file.read_text()), 0)
            time.sleep(0.01)


def statuses(report):
    return {part["name"]: part["status"] for part in report["parts"]}


def test_a_part_that_hangs_is_a_timeout_and_the_rest_runs(part, check):
    report = check(
        part("first", "context.holds('before it hangs', True)\nimport time\ntime.sleep(600)", 2.0),
        part("second", "context.holds('runs', True)"),
    )
    assert statuses(report) == {"first": "timeout", "second": "pass"}
    assert [found["name"] for found in report["parts"][0]["checks"]] == ["before it hangs"]
    assert report["verdict"] == "incomplete"


def test_a_part_that_ignores_the_request_to_end_is_killed_with_its_children(part, check, tmp_path):
    body = f"""
    import signal, subprocess, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    time.sleep(600)
    """
    assert statuses(check(part("stubborn", body, 2.0))) == {"stubborn": "timeout"}
    wait_until_gone(tmp_path / "pid")


def test_a_wrong_result_fails_the_run_and_a_slow_one_does_not(part, check):
    slow = part("slow", "context.speed('tokens', 1.0, 'tokens/s', ('peak', 100.0), floor=0.5)")
    assert check(slow, dry=False)["verdict"] == "pass"
    wrong = check(slow, part("wrong", "context.correct('error', 2.0, bound=1.0)"), dry=False)
    assert (statuses(wrong), wrong["verdict"]) == ({"slow": "pass", "wrong": "fail"}, "fail")
    (told,) = wrong["parts"][0]["checks"]
    assert (told["share"], told["ok"]) == (0.01, False)


def test_toy_sizes_on_a_cpu_are_never_slow(part, check):
    (told,) = check(part("toy", "context.speed('tokens', 1.0, 'tokens/s', ('peak', 100.0), floor=0.5)"))["parts"][0]["checks"]
    assert (told["share"], told["bound"], told["ok"]) == (0.01, None, True)


def test_the_exit_status_is_1_for_a_wrong_result_alone(gpu_check, monkeypatch, tmp_path):
    """The command itself, over parts made here."""
    for name, body in {"good": "holds('right', True)", "bad": "holds('right', False)", "late": "speed('s', 1.0, 'B/s')"}.items():
        (tmp_path / f"part_{name}.py").write_text(
            f"import time\ndef run(context):\n    context.{body}\n    time.sleep(30 * {name == 'late'})"
        )
    program = """
import sys
from importlib import import_module
from gpu_check import parts
from gpu_check.runner import Part
parts.PARTS = tuple(Part(name, f"part_{name}", 0.5 if name == "late" else 60.0) for name in sys.argv.pop().split(","))
sys.exit(import_module("gpu_check.__main__").main())
"""
    command = [sys.executable, "-c", program, "--dry", "--out", str(tmp_path / "report")]
    statuses = [
        subprocess.run([*command, names], capture_output=True, check=False).returncode for names in ("good", "good,late", "bad,good")
    ]
    assert statuses == [0, 0, 1]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_wrong(part, check, value):
    (found,) = check(part("broken", f"context.correct('error', float('{value}'), bound=1.0)"))["parts"][0]["checks"]
    assert (found["value"], found["ok"]) == (None, False)


def test_a_part_that_raises_fails_with_its_last_line(part, check):
    (found,) = check(part("raises", "raise RuntimeError('CUDA error: invalid argument')"))["parts"]
    assert (found["status"], found["reason"]) == ("fail", "RuntimeError: CUDA error: invalid argument")
    assert "Traceback" in found["log_tail"]


def test_a_part_without_its_package_is_skipped_by_name(part, check):
    (found,) = check(part("bare", "import no_such_package"))["parts"]
    assert found["status"] == "skip"
    assert "no_such_package" in found["reason"]


def test_a_module_of_our_own_that_is_missing_is_no_reason_to_skip(part, check):
    assert statuses(check(part("own", "import gradbus.no_such_module"))) == {"own": "fail"}


def test_facts_of_a_part_are_in_the_report_and_reach_the_next_parts(part, check):
    first = part("probe", "context.fact('probes', {'copy': 8.0})\ncontext.fact('versions', {'torch': '2'})")
    report = check(first, part("user", "context.speed('rate', 2.0, 'B/s', ('copy', context.ceilings['copy']))"))
    assert (report["probes"], report["versions"]) == ({"copy": 8.0}, {"torch": "2"})
    assert report["parts"][1]["checks"][0]["share"] == 0.25


def test_without_a_needed_part_the_rest_is_skipped_and_nothing_is_proven(part, check):
    probe = replace(part("probe", "from gpu_check.context import SkipPartError\nraise SkipPartError('no GPU is here')"), needed=True)
    report = check(probe, part("second", "raise RuntimeError"), part("third", "raise RuntimeError"))
    assert [found["reason"] for found in report["parts"]] == [
        "no GPU is here",
        *["the part probe did not pass, and the others need it"] * 2,
    ]
    assert (set(statuses(report).values()), report["verdict"]) == ({"skip"}, "incomplete")


def test_a_run_without_time_left_says_so_for_each_part(part, check):
    report = check(part("first", "pass"), part("second", "pass"), seconds=0.0)
    assert set(statuses(report).values()) == {"timeout"}


def test_a_scratch_folder_is_gone_after_its_part(part, check, tmp_path):
    note = tmp_path / "note"
    assert statuses(check(part("writes", f"open({str(note)!r}, 'w').write(str(context.folder))"))) == {"writes": "pass"}
    assert not Path(note.read_text()).exists()


def test_a_killed_run_leaves_a_valid_report_and_no_part(part, gpu_check, tmp_path):
    body = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    first, second = part("first", "context.holds('runs', True)"), part("second", body)
    program = f"""
from pathlib import Path
from gpu_check.runner import Options, Part, run
run([Part('first', {first.module!r}, 60.0), Part('second', {second.module!r}, 60.0)], Options(Path({str(tmp_path / "report")!r}), dry=True))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as killed:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
    report = json.loads((tmp_path / "report").read_text())
    assert (statuses(report), report["verdict"]) == ({"first": "pass"}, "incomplete")
    wait_until_gone(tmp_path / "pid")


def test_the_table_ends_with_the_verdict(part, check, gpu_check):
    _, results = gpu_check
    report = results.Report(parts=[results.PartResult("probe", "pass", seconds=1.0)], device={"name": "a GPU"})
    report.judge()
    assert results.table(report).splitlines()[-1] == "PASS on a GPU in 0 s: 1 pass, 0 fail, 0 skip, 0 timeout"
