"""How many arenas the allocator of the C library gives to the threads of a process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from gradbus.memory.allocator import share_arenas

if sys.argv[1:]:
    share_arenas(int(sys.argv[1]))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)

def allocate():
    together.wait()
    libc.malloc(10_000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no arenas")
def test_threads_share_as_many_arenas_as_they_may():
    def arenas(*most):
        done = subprocess.run([sys.executable, "-c", PROGRAM, *most], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.count("<heap nr=")

    assert arenas() > 2
    assert arenas("2") == 2
