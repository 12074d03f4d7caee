"""Logging errors never end a service."""

import subprocess
import sys

PROGRAM = """
from gradbus.telemetry import configure_logging, get_logger
configure_logging("test")
for number in range(3):
    get_logger("here").error("lost", number=number)
print("went on")
"""


def test_a_log_whose_volume_is_full_loses_lines_and_ends_nothing():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False)
    assert done.stdout == "went on\n"


def test_lines_are_json_on_standard_error():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count('"event": "lost"') == 3
