"""Makes the sandbox of one command: namespaces of its own, by itself or by bubblewrap, with `supervisor` as process 1.

Standard library only. Arguments after the folders of the packages: how niceness is raised, the level, and, for a command that serves
until it is ended, a handle of the document of a `ServedCommand`. Its standard input and output are the supervisor's, or that
command's. If the machine gives no sandbox it writes {"refused": reason}, and {"failed": reason} if one broke or may be had later.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import sys

from gradbus.sandbox.commands.loopback import bring_up
from gradbus.sandbox.commands.processes import detached_proc, exit_status
from gradbus.sandbox.commands.restrictions import DEVICES, DISK_FILES, DISK_MIB, FOLDER, INTERPRETER, SYSTEM_FOLDERS, TEMPORARY
from gradbus.sandbox.commands.server import has_listener, read_served, serve, served_paths
from gradbus.sandbox.commands.supervisor import supervise
from gradbus.sandbox.new_root import enter_new_root, map_ids
from gradbus.sandbox.privileges import be_first_out_of_memory, die_with_parent, system_library

_NOBODY = 65_534
_NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x20000 | 0x8000000 | 0x4000000 | 0x2000000
"""User, PID, network, mount, IPC, UTS, cgroup."""
_CLONE = {"x86_64": 56, "aarch64": 220}
_BUBBLEWRAP = ("/usr/local/bin/bwrap", "/usr/bin/bwrap", "/bin/bwrap")
_LIBRARIES = "/gradbus"
"""Where bubblewrap's process 1 finds this package, and a command does not."""
_PASSING = (errno.EAGAIN, errno.ENOMEM)
_REMEDY = "allow user namespaces (sysctl user.max_user_namespaces, or the container's seccomp profile), or install bubblewrap"


def main() -> None:
    """Does not return before the sandbox has ended."""
    folders, niceness, level = sys.argv[1:3], int(sys.argv[3]), sys.argv[4]
    libc = system_library()
    parent = os.getppid()
    os.nice(niceness)
    be_first_out_of_memory()
    die_with_parent(libc)
    if os.getppid() != parent:
        return
    document = int(sys.argv[5]) if len(sys.argv) > 5 else None
    if level == "bubblewrap":
        _bubblewrap(libc, folders[0], document)
    else:
        _namespaces(libc, None if document is None else read_served(document))


def _namespaces(libc: ctypes.CDLL, served: str | None) -> None:
    ids = _ids()
    if ids[0] != ids[-1]:
        os.setgroups([])
    mapped, map_done = os.pipe()
    # As fork does, but the child is process 1 of its namespaces, whose ids its parent maps: only that may map others than its own.
    first = libc.syscall(_CLONE[platform.machine()], _NAMESPACES | signal.SIGCHLD, 0, 0, 0, 0)
    if first < 0 and ctypes.get_errno() in _PASSING:
        _say("failed", f"no sandbox for now: {os.strerror(ctypes.get_errno())}; raise the machine's limits on processes and memory")
    elif first < 0:
        _refuse(f"the kernel gives no namespaces ({os.strerror(ctypes.get_errno())}); {_REMEDY}")
    elif first == 0:
        os.close(map_done)
        _be_first_process(libc, mapped, ids[-1], served)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))  # the kernel ends all others before it is waited for
        try:
            map_ids(str(first), ids)
            os.write(map_done, b"1")
        except OSError as error:
            _refuse(f"the kernel maps no ids ({error.strerror}); {_REMEDY}")
        for handle in (0, 1, mapped, map_done):
            os.close(handle)
        if served is not None and (listener := json.loads(served)["listener"]) is not None:
            os.close(listener)  # so that the parent sees the end of process 1
        sys.exit(exit_status(os.waitpid(first, 0)[1]))


def _ids() -> list[tuple[int, int]]:
    """Users and groups of the namespace; the command has the last ones. Those of root are no choice: the kernel does not count its
    processes, and it owns files of the system."""
    own = os.geteuid(), os.getegid()
    return [own, (_NOBODY, _NOBODY)] if own[0] == 0 else [own]


def _be_first_process(libc: ctypes.CDLL, mapped: int, ids: tuple[int, int], served: str | None) -> None:
    """Does not return."""
    code = 1
    try:
        die_with_parent(libc)
        if not os.read(mapped, 1):
            return
        os.close(mapped)
        proc = detached_proc(libc)
        options = f"size={DISK_MIB}m,nr_inodes={DISK_FILES},mode=700,uid={ids[0]},gid={ids[1]}"
        if not enter_new_root(libc, (*SYSTEM_FOLDERS, *DEVICES, *served_paths(served)), {FOLDER: options, TEMPORARY: options}):
            _refuse(f"the kernel gives no root folder of its own; {_REMEDY}")
            return
        if has_listener(served):
            bring_up()
        os.setresgid(ids[1], ids[1], ids[1])
        os.setresuid(ids[0], ids[0], ids[0])
        die_with_parent(libc)  # other credentials end it
        if served is None:
            supervise(libc, proc)
            code = 0
        else:
            code = serve(libc, proc, served)
    except BaseException as error:  # noqa: BLE001 - process 1 of a sandbox: whatever it is, the parent reads it
        _say("failed", f"the sandbox broke: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _bubblewrap(libc: ctypes.CDLL, libraries: str, document: int | None) -> None:
    program = next((path for path in _BUBBLEWRAP if os.access(path, os.X_OK)), None)
    if program is None:
        _refuse("bubblewrap is not installed here; install it (bwrap), or ask for namespaces")
        return
    served = None if document is None else read_served(document, keep=True)
    shown = [path for path in dict.fromkeys((*SYSTEM_FOLDERS, *served_paths(served))) if os.path.exists(path)]
    module = "supervisor" if served is None else "server"
    boot = f"import sys; sys.path.insert(0, {_LIBRARIES!r}); from gradbus.sandbox.commands import {module}; {module}.main()"
    arguments = [
        *("--unshare-all", "--die-with-parent", "--as-pid-1", "--clearenv", "--cap-drop", "ALL", "--new-session", "--proc", "/proc"),
        *(part for path in shown for part in ("--ro-bind", path, path)),
        *(part for path in DEVICES for part in ("--dev-bind", path, path)),
        *("--ro-bind", f"{libraries}/gradbus/sandbox", f"{_LIBRARIES}/gradbus/sandbox"),
        *(part for path in (FOLDER, TEMPORARY) for part in ("--size", str(DISK_MIB << 20), "--tmpfs", path)),
        *("--remount-ro", "/", "--chdir", "/", "--", INTERPRETER, "-I", "-S", "-B", "-c", boot),
        *([] if document is None else [str(document)]),
    ]
    user, group = _ids()[-1]
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        die_with_parent(libc)
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell


def _refuse(reason: str) -> None:
    _say("refused", f"no sandbox: {reason}")


def _say(kind: str, reason: str) -> None:
    sys.stdout.write(json.dumps({kind: reason}) + "\n")
    sys.stdout.flush()
