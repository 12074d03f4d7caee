"""The filter of system calls of a grader's process. Standard library only."""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Collection

_PR_SET_SECCOMP = 22

# System calls refused, with their numbers: (x86_64, aarch64); None where the machine has no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "clone": (56, 220), "fork": (57, None),
    "vfork": (58, None), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "prlimit64": (302, 261), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "chroot": (161, 51), "setpriority": (141, 140), "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # What is created, removed or renamed, for kernels without Landlock. `_OPEN_TO_CHANGE` has the flags of open.
    "creat": (85, None), "openat2": (437, 437), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None),
    "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None),
    "mknodat": (259, 33),
    # Landlock does not restrict these.
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None), "fchown": (93, 55),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "flock": (73, 32),
    "file_getattr": (468, 468), "file_setattr": (469, 469),
    # On processes of the same user.
    "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239), "process_madvise": (440, 440),
    "kcmp": (312, 272), "prctl": (157, 167), "setsid": (112, 157), "setpgid": (109, 154), "process_mrelease": (448, 448),
    # Whether a process exists, and how it is run.
    "getpriority": (140, 141), "getpgid": (121, 155), "getsid": (124, 156), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_getattr": (315, 275),
    "sched_rr_get_interval": (148, 127), "ioprio_get": (252, 31), "get_robust_list": (274, 100), "capget": (125, 90),
    # What processes share.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "memfd_create": (319, 279), "memfd_secret": (447, 447), "io_setup": (206, 0),
    "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83), "sync_file_range": (277, 84),
    "msync": (26, 227), "membarrier": (324, 283), "seccomp": (317, 277), "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446), "syslog": (103, 116), "personality": (135, 92),
    "modify_ldt": (154, None),
    # Where files are, and who changes them.
    "chdir": (80, 49), "fchdir": (81, 50), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "statfs": (137, 43), "fstatfs": (138, 44), "ustat": (136, None),
    "statmount": (457, 457), "listmount": (458, 458), "lsm_get_self_attr": (459, 459), "lsm_list_modules": (461, 461),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "pivot_root": (155, 41),
    "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "open_tree_attr": (467, 467), "mount_setattr": (442, 442), "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # Among others it names the process that gets a signal when a file is ready.
    "ioctl": (16, 29),
}  # fmt: skip
_NEWEST = 469
"""The newest call that this list knows. The kernel may have newer ones; they do not exist for a grader."""
_FCNTL, _OPEN, _OPENAT = (72, 25), (2, None), (257, 56)
_REFUSED_FCNTL = {"F_SETOWN": 8, "F_SETSIG": 10, "F_SETOWN_EX": 15, "F_SETLEASE": 1024, "F_NOTIFY": 1026, "F_SETPIPE_SZ": 1031}
"""Commands of fcntl refused: the kernel would send any signal to any process of the same user, or give the pipes of all less room."""
_OPEN_TO_CHANGE = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000
"""Flags of open refused: O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE."""
_CLONE_NAMESPACES = 0x7E020000
"""Flags of clone refused."""
_CLONE3, _AF_UNIX, _AF_INET = 435, 1, 2
_MMAP = (9, 222)
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Classic BPF: load a word of seccomp_data; jump; jump if equal, if at least, if any bit is set; return.
_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_KILL, _EPERM, _ENOSYS, _ALLOW = 0x80000000, 0x00050001, 0x00050026, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 32, 40
"""Offsets in seccomp_data; of an argument, that of its lower half."""
_Step = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand (of `_JUMP`: the jump). A jump counts from the step after it."""


def filter_calls(libc: ctypes.CDLL, allowed: Collection[str] = ()) -> bool:
    """Makes the system calls of `_REFUSED` and those with refused arguments fail with EPERM for the rest of this process's life.

    `allowed` names those of `_REFUSED` that are not refused, for a process in a PID namespace and a root folder of its own. Of `clone` new
    namespaces stay refused, of `socketpair` all but pairs of Unix sockets, of `socket` all but IPv4, and of `prlimit64` all processes but
    the caller. `clone3` does not exist for it, and it gets no memory that is shared without a file or in huge pages, which is counted as
    no process's.
    """
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return False
    program = b"".join(struct.pack("=HBBI", *step) for step in _program(_AUDIT_ARCH[machine], list(_AUDIT_ARCH).index(machine), allowed))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    mode_filter = 2
    installed: int = libc.prctl(_PR_SET_SECCOMP, mode_filter, ctypes.addressof(header), 0, 0)
    return installed == 0


def _program(arch: int, column: int, allowed: Collection[str] = ()) -> list[_Step]:
    """Kills calls of a foreign architecture, refuses the listed ones and those newer than the list, allows the rest."""
    refused = [number for name, pair in _REFUSED.items() if name not in allowed and (number := pair[column]) is not None]
    commands = list(_REFUSED_FCNTL.values())
    checks = _argument_check(_FCNTL[column], _SECOND_ARGUMENT, _EQUAL, commands)
    if "creat" not in allowed:
        checks += _argument_check(_OPEN[column], _SECOND_ARGUMENT, _ANY_BIT, [_OPEN_TO_CHANGE])
        checks += _argument_check(_OPENAT[column], _THIRD_ARGUMENT, _ANY_BIT, [_OPEN_TO_CHANGE])
    socketpair, network, prlimit = (_REFUSED[name][column] for name in ("socketpair", "socket", "prlimit64"))
    if "clone" in allowed:
        checks += _shared_memory_check(_MMAP[column])
        checks += _argument_check(_REFUSED["clone"][column], _FIRST_ARGUMENT, _ANY_BIT, [_CLONE_NAMESPACES])
        # Its flags are in memory, where a filter sees nothing; the C library then uses clone.
        checks += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)]
    if "socketpair" in allowed and socketpair is not None:
        checks += _first_argument_check(socketpair, _AF_UNIX)
    if "socket" in allowed and network is not None:
        checks += _first_argument_check(network, _AF_INET)
    if "prlimit64" in allowed and prlimit is not None:
        checks += _first_argument_check(prlimit, 0)
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _NEWEST + 1),
        (_RETURN, 0, 0, _ENOSYS),
        *((_EQUAL, len(refused) - n, 0, number) for n, number in enumerate(refused)),
        (_JUMP, 0, 0, 1),
        (_RETURN, 0, 0, _EPERM),
        *checks,
        (_RETURN, 0, 0, _ALLOW),
    ]


def _argument_check(number: int | None, offset: int, jump: int, refused: list[int]) -> list[_Step]:
    """Refuses the call `number` if `jump` is taken for the argument at `offset` and any of the values."""
    if number is None:
        return []
    return [
        (_EQUAL, 0, len(refused) + 3, number),
        (_LOAD, 0, 0, offset),
        *((jump, len(refused) - n, 0, value) for n, value in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _EPERM),
    ]


def _first_argument_check(number: int, only: int) -> list[_Step]:
    """Refuses the call `number` if its first argument is another value."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 0, 1, only),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _EPERM),
    ]


def _shared_memory_check(mmap: int) -> list[_Step]:
    """Refuses huge pages, and memory that is shared and has no file."""
    return [
        (_EQUAL, 0, 6, mmap),
        (_LOAD, 0, 0, _FOURTH_ARGUMENT),
        (_ANY_BIT, 2, 0, _MAP_HUGETLB),
        (_ANY_BIT, 0, 2, _MAP_ANONYMOUS),
        (_ANY_BIT, 0, 1, _MAP_SHARED),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
