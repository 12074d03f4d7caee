"""What a process gives up by itself, or is bound to. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import struct

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION_3 = 0x20080522


def system_library() -> ctypes.CDLL:
    """The C library, with the types of what is called here."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    libc.syscall.restype = ctypes.c_long
    return libc


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Gives up all capabilities, and whatever a program could give its caller when it is executed."""
    header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
    libc.capset(header, bytes(24))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def die_with_parent(libc: ctypes.CDLL) -> None:
    """The kernel kills this process when its parent ends. The caller looks whether the parent has ended before."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def be_first_out_of_memory() -> None:
    """If the machine's memory ends, the kernel kills this process and its children before anything else."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
