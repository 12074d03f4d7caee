"""Memory that a run has left is told from code that it was the first to need."""

import re
import subprocess
import sys

import pytest

from gradbus.errors import RestartNeededError

RUNS = """
import sys
from pathlib import Path
from gradbus.memory.resident import code_bytes, importing
from gradbus.process.limits import IdleMemory

Path("large.py").write_text("table = bytes(range(256)) * 200_000  # 51 MB")
sys.path.insert(0, ".")
idle = IdleMemory(20_000_000)
for run in range(2):
    with importing("large"):
        import large
    idle.check()
    print(f"code={round(code_bytes() / 1e7)}")
left = bytearray(50_000_000)
idle.check()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is known on Linux alone")
def test_code_that_a_run_imported_is_not_left_by_it(tmp_path):
    process = subprocess.run([sys.executable, "-c", RUNS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.findall("code=.*", process.stdout) == ["code=5", "code=5"]
    assert f"{RestartNeededError.__name__}: 50 MB of a run that is over are left, at most 20 MB may be" in process.stderr
