"""The CPU twin of every recipe runs to its end: `make test-recipes`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("recipe", "runs"), [("maths", 1), ("code", 1), ("chat", 2), ("tools", 1)])
def test_a_twin_trains_to_its_end(recipe, runs):
    done = subprocess.run([sys.executable, "recipes/twin.py", recipe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 steps of recipes/") == runs
