import os
import subprocess
import sys

import pytest

PROGRAM = """
from gradbus import crash_points
from gradbus.telemetry import configure_logging

configure_logging("test")
for name in ("other", "here", "here", "here"):
    crash_points.reached(name)
    print(name, flush=True)
"""


def passes(folder, point):
    environment = {**os.environ, "GRADBUS_CRASH_POINT": point, "GRADBUS_CRASH_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize(
    ("point", "status", "passed"),
    [
        ("", 0, ["other", "here", "here", "here"]),
        ("here", -9, ["other"]),
        ("here:3", -9, ["other", "here", "here"]),
        ("here:4", 0, ["other", "here", "here", "here"]),
        ("nowhere", 0, ["other", "here", "here", "here"]),
    ],
)
def test_a_process_dies_at_the_point_that_is_named(tmp_path, point, status, passed):
    assert passes(tmp_path, point) == (status, passed)


def test_the_process_that_is_started_again_goes_on(tmp_path):
    assert passes(tmp_path, "here")[0] == -9
    assert passes(tmp_path, "here") == (0, ["other", "here", "here", "here"])


def test_it_may_die_again_at_a_later_pass(tmp_path):
    assert passes(tmp_path, "here:1,3") == (-9, ["other"])
    assert passes(tmp_path, "here:1,3") == (-9, ["other", "here", "here"])
    assert passes(tmp_path, "here:1,3") == (0, ["other", "here", "here", "here"])
