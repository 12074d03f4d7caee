"""Memory that a step frees stays for the next one."""

import subprocess
import sys

PROGRAM = """
import ctypes, resource, torch
from gradbus.memory.allocator import keep_freed_memory
torch.set_num_threads(1)
keep_freed_memory()

def step():
    tensors = [torch.ones(1 << 18) for _ in range(32)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert not hasattr(ctypes.CDLL(None), "mallopt") or faults < 4096, faults  # 32 MiB are 8,192 pages
"""


def test_a_second_step_finds_the_pages_of_the_first():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
