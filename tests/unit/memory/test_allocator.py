"""Freed memory goes back to the system."""

import subprocess
import sys

FREES = """
import psutil
from gradbus.memory.allocator import trim_memory

blocks = [bytearray(4096) for _ in range(40_000)]
held = psutil.Process().memory_info().rss
pinned = blocks[::1000]  # the allocator returns by itself only what lies above all that is in use
del blocks
kept = psutil.Process().memory_info().rss
trim_memory()
print(held, kept, psutil.Process().memory_info().rss)
"""


def test_memory_that_was_freed_between_what_is_in_use_is_returned():
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True, timeout=60)
    held, kept, left = map(int, done.stdout.split())
    assert held - kept < 80e6, "else this proves nothing"
    assert held - left > 120e6
