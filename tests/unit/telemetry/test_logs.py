"""Logging errors never end a service."""

import json
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


OF_LIBRARIES = """
import logging, warnings
from gradbus.telemetry import configure_logging
configure_logging("test")
logging.getLogger("a.library").warning("slow %s", '"disk"')
logging.getLogger("a.library").info("not shown")
warnings.warn("old")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("never retrieved")
"""


def test_what_libraries_log_is_json_too():
    done = subprocess.run([sys.executable, "-c", OF_LIBRARIES], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["module"], line["level"], line["service"]) for line in lines] == [
        ("a.library", "warning", "test"),
        ("py.warnings", "warning", "test"),
        ("asyncio", "error", "test"),
    ]
    assert lines[0]["event"] == 'slow "disk"'
    assert lines[2]["exception"][0]["exc_type"] == "ZeroDivisionError"
