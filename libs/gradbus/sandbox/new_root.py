"""A root folder of its own for a grader's process: it then cannot even ask whether a file exists. Standard library only.

An unprivileged process may mount in a user namespace of its own. The new root is an empty file system in memory with the given
folders and files bound into it, read-only; everything else is detached.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping, Sequence

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 442, -100, 0x8000, 1, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_STAGING = ("/tmp", "/mnt", "/var")  # noqa: S108 - hidden by a mount that only this process sees


def map_ids(process: str, ids: Sequence[tuple[int, int]]) -> None:
    """Names the users and groups of the user namespace of a process (`self`, or its number): pairs of a user and a group, which are the
    same outside. Without them nobody could own a file there. Raises OSError."""
    _write(f"/proc/{process}/setgroups", "deny")
    _write(f"/proc/{process}/uid_map", "\n".join(f"{user} {user} 1" for user, _ in ids))
    _write(f"/proc/{process}/gid_map", "\n".join(f"{group} {group} 1" for _, group in ids))


def enter_new_root(libc: ctypes.CDLL, paths: Sequence[str], writable: Mapping[str, str] | None = None) -> bool:
    """Makes a folder with nothing but `paths` the root of this process. False where the kernel refuses it.

    The process has just entered user and mount namespaces of its own, and its ids are mapped. `writable` are folders that are empty
    file systems in memory, with their mount options, such as `size=64m`.
    """
    try:
        _mount(libc, None, "/", None, _MS_REC | _MS_PRIVATE)
        _change_root(libc, _outermost(paths), writable or {})
    except OSError:
        return False
    return True


def _change_root(libc: ctypes.CDLL, paths: Sequence[str], writable: Mapping[str, str]) -> None:
    staging = next((path for path in _STAGING if os.path.isdir(path)), "")
    # Opened first, because the mount may hide them.
    handles = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths}
    _mount(libc, "tmpfs", staging, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=64k,mode=755")
    for path, handle in handles.items():
        _bind(libc, handle, staging + path)
        os.close(handle)
    for path in writable:
        os.makedirs(staging + path, exist_ok=True)
    _make_read_only(libc, staging)
    for path, options in writable.items():
        _mount(libc, "tmpfs", staging + path, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    os.chdir(staging)
    # The old root comes to lie on top of the new one, and is taken off: pivot_root(2).
    _check(libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    _check(libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


def _make_read_only(libc: ctypes.CDLL, root: str) -> None:
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    if libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, root.encode(), _AT_RECURSIVE, attributes, size) != 0:
        # Before Linux 5.12: the root alone. Landlock and the filter keep the folders in it as they are.
        _mount(libc, None, root, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _bind(libc: ctypes.CDLL, handle: int, target: str) -> None:
    source = f"/proc/self/fd/{handle}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_RDONLY))
    _mount(libc, source, target, None, _MS_BIND | _MS_REC)


def _outermost(paths: Sequence[str]) -> list[str]:
    """The paths that exist and do not lie below another."""
    existing = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    return [path for path in existing if not any(path.startswith(f"{other}/") for other in existing)]


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)
