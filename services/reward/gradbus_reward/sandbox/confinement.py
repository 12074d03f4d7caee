"""Confines a grader's process before it loads any user's code.

Three layers of Linux, none of which needs privileges: a seccomp filter (no sockets, no processes, no signals to
others, no change to a file's length, mode, owner or times), Landlock (no files but the standard library) and,
where the kernel allows it, an empty network namespace. Standard library only, because the child runs a bare interpreter.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from dataclasses import dataclass

MEMORY_BYTES = 512 << 20
CPU_SECONDS = 3600
OPEN_FILES = 64
TASKS = 64

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522

# System calls refused, with their numbers: (x86_64, aarch64); None where the machine has no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "prlimit64": (302, 261),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "chroot": (161, 51), "setpriority": (141, 140),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Landlock does not restrict these.
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "flock": (73, 32),
    # On processes of the same user.
    "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239), "process_madvise": (440, 440), "kcmp": (312, 272),
    "prctl": (157, 167), "setsid": (112, 157), "setpgid": (109, 154),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
}  # fmt: skip
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Landlock: the file rights of its first version, and the two that reading needs.
_ALL_FILE_RIGHTS, _READ_FILE, _READ_DIR = 0x1FFF, 0x4, 0x8
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_RULE_PATH_BENEATH = 1
_READABLE_FOLDERS = (os.path.dirname(os.__file__), "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
_READABLE_FILES = ("/dev/null", "/dev/urandom")


@dataclass(frozen=True)
class Confinement:
    """The layers that are in force."""

    seccomp: bool
    namespace: bool
    landlock: bool

    @property
    def without_network(self) -> bool:
        """Whether the process cannot reach any network."""
        return self.seccomp or self.namespace


def confine() -> Confinement:
    """Confines this process for the rest of its life. Call it while the process has one thread."""
    _set_limits()
    if not sys.platform.startswith("linux"):
        return Confinement(seccomp=False, namespace=False, landlock=False)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    libc.syscall.restype = ctypes.c_long
    namespace = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0
    _drop_capabilities(libc)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # After the namespace: the kernel clears it when a process changes its credentials.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    landlock = _restrict_files(libc)
    return Confinement(seccomp=_filter_calls(libc), namespace=namespace, landlock=landlock)


def _set_limits() -> None:
    for kind, value in [
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, TASKS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ]:
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
    libc.capset(header, bytes(24))


def _restrict_files(libc: ctypes.CDLL) -> bool:
    """Allows to read the standard library and system libraries, and nothing else (Linux 5.13)."""
    attributes = struct.pack("=Q", _ALL_FILE_RIGHTS)
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for paths, rights in ((_READABLE_FOLDERS, _READ_FILE | _READ_DIR), (_READABLE_FILES, _READ_FILE)):
        for path in filter(os.path.exists, paths):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
            os.close(handle)
    restricted: int = libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return restricted == 0


def _filter_calls(libc: ctypes.CDLL) -> bool:
    """Makes the system calls of `_REFUSED` fail with EPERM for the rest of this process's life."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return False
    column = list(_AUDIT_ARCH).index(machine)
    program = _program(_AUDIT_ARCH[machine], [number for pair in _REFUSED.values() if (number := pair[column]) is not None])
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    mode_filter = 2
    installed: int = libc.prctl(_PR_SET_SECCOMP, mode_filter, ctypes.addressof(header), 0, 0)
    return installed == 0


def _program(arch: int, refused: list[int]) -> bytes:
    """Classic BPF over seccomp_data (call number at 0, architecture at 4): kills foreign ones, refuses the listed, allows the rest."""
    load, jump_equal, jump_at_least, result = 0x20, 0x15, 0x35, 0x06
    kill, refuse, allow = 0x80000000, 0x00050001, 0x7FFF0000
    count = len(refused)
    steps = [
        (load, 0, 0, 4),
        (jump_equal, 1, 0, arch),
        (result, 0, 0, kill),
        (load, 0, 0, 0),
        (jump_at_least, count + 1, 0, _X32_BIT),
    ]
    steps += [(jump_equal, count - n, 0, number) for n, number in enumerate(refused)]
    steps += [(result, 0, 0, allow), (result, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
