"""Landlock: which files a process may use (Linux 5.13 and later). Standard library only."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

READ, EXECUTE, WRITE = 0x4 | 0x8, 0x1, 0xFFFF & ~0x1
"""Rights: to read files and folders; to execute; to read, change, create and remove."""
_OF_FILES = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
"""Those that a rule on a file, and not a folder, may give."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 1, 2
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""All rights of files, by the kernel's version of Landlock."""
_TCP, _CONNECT, _SCOPES = 0x3, 0x2, 0x3
"""To bind and connect (version 4); abstract sockets of, and signals to, processes outside (version 6)."""
_VERSION_OF_TCP = 4


def restrict_files(libc: ctypes.CDLL, rights: Mapping[str, int], port: int | None = None) -> bool:
    """Leaves this process the given rights, by path, and no other ones; paths that do not exist are left out.

    With newer kernels TCP but connections to `port`, and abstract sockets of and signals to processes outside, are refused too. False
    where there is no Landlock.
    """
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    known = _RIGHTS[min(version, max(_RIGHTS))]
    attributes = struct.pack("=QQQ", known, _TCP, _SCOPES)[: 8 if version < _VERSION_OF_TCP else 16 if version < 6 else 24]
    ruleset = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for path, given in rights.items():
        if os.path.exists(path):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            fitting = given & known & (0xFFFF if os.path.isdir(path) else _OF_FILES)
            libc.syscall(_ADD, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", fitting, handle), 0)
            os.close(handle)
    if port is not None and version >= _VERSION_OF_TCP:
        libc.syscall(_ADD, ruleset, _RULE_NET_PORT, struct.pack("=QQ", _CONNECT, port), 0)
    restricted: int = libc.syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return restricted == 0
