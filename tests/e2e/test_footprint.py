"""Services without torch stay small, and the command line runs without it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST_BYTES = 150 * 2**20
LIGHT = ("gateway", "conductor", "reward", "weight_store")
SERVICES = (*(f"gradbus_{name}" for name in LIGHT), "gradbus_rollout", "gradbus_reference", "gradbus_trainer")
VERBS = (
    "up",
    "down",
    "status",
    "run",
    "runs",
    "show",
    "samples",
    "events",
    "pause",
    "resume",
    "cancel",
    "delete",
    "export",
    "open",
    "keys",
)
HELP = """
import contextlib, io, runpy, sys
for argv in {commands!r}:
    sys.argv, said = [*argv, "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_module({module!r}, run_name="__main__")
    assert "--help" in said.getvalue(), argv
    print(*argv, *sorted({{"torch", "transformers", "numpy", "fastapi"}} & set(sys.modules)))
"""


def heavy_imports(module, *verbs):
    """The heavy modules that are there after the help of the module and of its verbs, one process for all."""
    commands = [[module], *([module, verb] for verb in verbs)]
    code = HELP.format(commands=commands, module=module)
    said = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=240)
    assert said.returncode == 0, said.stderr
    shown = [line.split() for line in said.stdout.splitlines()]
    assert len(shown) == len(commands)
    return {" ".join(words[: len(command)]): words[len(command) :] for command, words in zip(commands, shown, strict=True)}


@pytest.mark.parametrize("module", SERVICES)
def test_the_help_of_a_service_imports_nothing_heavy(module):
    assert heavy_imports(module) == {module: []}


def test_the_help_of_a_verb_imports_nothing_heavy():
    found = heavy_imports("gradbus.cli", *VERBS)
    assert [command for command, heavy in found.items() if heavy] == []


@pytest.fixture(scope="module")
def trained(lab, spec):
    """The processes of the stack after a run, name to pid."""
    lab.train(spec())
    return {name: process["pid"] for name, process in json.loads((lab.state / "stack.json").read_text())["processes"].items()}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for the memory")
@pytest.mark.parametrize("name", LIGHT)
def test_a_service_without_torch_is_small_after_a_run(trained, name):
    lines = Path(f"/proc/{trained[name]}/status").read_text().splitlines()
    resident = int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) * 1024
    assert resident < MOST_BYTES
    assert "libtorch" not in Path(f"/proc/{trained[name]}/maps").read_text()
