"""The command line in processes of their own, forked from one that has imported it: by itself each would import for a second.

`forked_command.py` is the server: it reads requests as lines of JSON, and answers each with the exit status.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


class ForkedCommands:
    """Runs `gradbus` commands one after the other. The first one starts the server, which ends with its input."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, *arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of `gradbus ARGUMENTS` with its output captured; `environment` is added to this process's."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("output", "errors")]
            request = {"arguments": list(map(str, arguments)), "environment": {**os.environ, **environment}}
            status = self._ask(json.dumps(request | {"cwd": str(cwd or Path.cwd()), "files": list(map(str, files))}))
            return subprocess.CompletedProcess(request["arguments"], status, *(file.read_text() for file in files))

    def close(self) -> None:
        """Ends the server."""
        if self._server:
            self._server.communicate()

    def _ask(self, request: str) -> int:
        if self._server is None:
            self._server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(request, file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())


def serve() -> None:
    """Forks a process for each request, and returns in it, as what it is to be."""
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            become(**request)
            return
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    sys.exit()


def become(arguments: list[str], environment: dict[str, str], cwd: str, files: list[str]) -> None:
    """Gives this process its arguments, environment, folder and output."""
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, name in ((0, os.devnull), *enumerate(files, 1)):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    from importlib import import_module

    from gradbus.cli.__main__ import main

    import_module("gradbus.client")  # most commands import it once they run
    sys.argv[0] = "gradbus"
    serve()
    main()
