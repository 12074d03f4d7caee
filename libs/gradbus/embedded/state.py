"""The state folder: files that survive a restart of the stack, and the lock of the stack that owns them."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from gradbus.errors import StackError

DEFAULT_STATE = Path(os.environ.get("GRADBUS_STATE", ".gradbus"))
_ROTATE_BYTES = 10 << 20


class StateFolder:
    """Paths below one folder, its lock, and the small JSON files in it."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.logs = self.root / "logs"
        self.secrets = self.root / "secrets"
        self.objects = self.root / "objects"
        self.cache = self.root / "cache"
        self.nats = self.root / "nats"
        self.buffer = self.root / "buffer"
        self._lock: IO[str] | None = None

    @property
    def api_key_file(self) -> Path:
        """The file with the token of the API key made at the first start."""
        return self.secrets / "api-key"

    def lock(self) -> None:
        """Creates the folder and locks it until `unlock` or the end of this process.

        Raises StackError when another process holds the lock, or when the folder cannot be written.
        """
        try:
            for folder in (self.root, self.logs, self.secrets, self.objects, self.cache, self.nats, self.buffer):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = (self.root / "lock").open("a+")
        except OSError as error:
            raise StackError(f"cannot use the state folder {self.root} ({error.strerror}); choose another with --state") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            raise StackError(
                f"a stack runs on {self.root} already (pid {self.owner()}); use it, stop it with "
                f"`gradbus down --state {self.root}`, or give --state another folder"
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._lock = handle

    def unlock(self) -> None:
        """Releases the lock."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def owner(self) -> int | None:
        """Pid of the supervisor that holds the lock; None when there is none."""
        try:
            with (self.root / "lock").open() as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(handle.read().strip() or 0)
        except OSError:
            return None
        return None

    def read(self, name: str) -> dict[str, Any]:
        """The content of a JSON file; empty when the file is missing or damaged."""
        try:
            content = json.loads((self.root / name).read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replaces a JSON file atomically."""
        temporary = self.root / f"{name}.tmp"
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(self.root / name)

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        (self.root / name).unlink(missing_ok=True)

    def log_file(self, process: str) -> Path:
        """The log file of a process; a large one is rotated first, and only one rotated file is kept."""
        path = self.logs / f"{process}.log"
        if path.exists() and path.stat().st_size > _ROTATE_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return path

    def log_tail(self, process: str, lines: int = 15) -> str:
        """The last lines of a process's log."""
        path = self.logs / f"{process}.log"
        if not path.exists():
            return "(the log is empty)"
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
