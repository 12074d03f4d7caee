"""Services without torch stay small, and the command line runs without it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST_BYTES = 150 * 2**20
LIGHT = ("gateway", "conductor", "reward", "weight_store")
SERVICES = (*(f"gradbus_{name}" for name in LIGHT), "gradbus_rollout", "gradbus_reference", "gradbus_trainer")
VERBS = ("up", "down", "status", "run", "runs", "show", "samples", "events", "pause", "resume", "cancel", "export", "keys")
HELP = """
import runpy, sys
sys.argv = {argv!r}
try:
    runpy.run_module({module!r}, run_name="__main__")
finally:
    print(sorted({{"torch", "transformers", "numpy", "fastapi"}} & set(sys.modules)))
"""


def heavy_imports(module, *arguments):
    """The heavy modules that `--help` imports."""
    code = HELP.format(argv=[module, *arguments, "--help"], module=module)
    said = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=240)
    assert "Traceback" not in said.stderr, said.stderr
    assert "--help" in said.stdout
    return json.loads(said.stdout.splitlines()[-1].replace("'", '"'))


@pytest.mark.parametrize("module", SERVICES)
def test_the_help_of_a_service_imports_nothing_heavy(module):
    assert heavy_imports(module) == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_imports_nothing_heavy(verb):
    assert heavy_imports("gradbus.cli", verb) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for the memory")
@pytest.mark.parametrize("name", LIGHT)
def test_a_service_without_torch_is_small_after_a_run(lab, spec, name):
    lab.train(spec())
    pid = json.loads((lab.state / "stack.json").read_text())["processes"][name]["pid"]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    resident = int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) * 1024
    assert resident < MOST_BYTES
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
