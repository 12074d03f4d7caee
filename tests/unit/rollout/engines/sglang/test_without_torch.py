"""A worker whose engine is a server brings no torch."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # any import of it fails
import gradbus_rollout.service, gradbus_rollout.engines.sglang
"""


def test_the_service_and_the_engine_are_imported_where_there_is_no_torch():
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
