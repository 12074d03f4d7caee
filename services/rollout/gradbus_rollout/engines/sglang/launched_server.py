"""The processes of a launched server: one session, which is ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.errors import EngineError, EngineFailure
from gradbus.spec import LoraSpec
from gradbus_rollout.engines.server import guard
from gradbus_rollout.engines.server.exit_cause import error_line, kernel_kills, log_lacks_memory
from gradbus_rollout.engines.sglang.adapters import served_modules
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings

_TAIL_BYTES: Final = 24_000
"""Of the log, searched for the error: the stacks of several ranks, and what follows them."""
_SHOWN_CHARACTERS: Final = 3000
_GONE_SECONDS: Final = 10.0
_GONE_POLL_SECONDS: Final = 0.05
_NO_SGLANG: Final = "No module named 'sglang'"
_OURS: Final = "GRADBUS_"
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The worker's own numbers of threads say nothing about the server, which computes."""
_PROBES: Final = 1
"""Requests in addition to the samples, so that the proof of adapters does not wait for a sample to end."""
_TURNS: Final = ("--enable-memory-saver", "--cuda-graph-backend-prefill", "disabled")
"""The saver frees memory whose addresses stay. Prefill graphs that may be broken off and the saver exclude each other."""
_TURNS_ENVIRONMENT: Final = {"NCCL_GRAPH_REGISTER": "0"}
_KILLED: Final = {-signal.SIGKILL, 128 + signal.SIGKILL}
"""Exit statuses of a server that was killed: by the kernel when memory ran out, or by itself because one of its processes failed."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Settings of one start."""

    settings: SGLangSettings
    model: Path
    config: SGLangConfig
    key: str
    log: Path


class LaunchedServer:
    """A server from its start to its end."""

    def __init__(self, process: Process, port: int, scratch: tempfile.TemporaryDirectory[str], launch: LaunchConfig) -> None:
        self._process = process
        self._scratch = scratch
        self._launch = launch
        self._kills_before = kernel_kills()
        self.port = port

    @classmethod
    async def start(cls, launch: LaunchConfig) -> LaunchedServer:
        """Starts the processes, without waiting for the server to answer. Raises EngineError when the command cannot run at all."""
        _check(launch.settings)
        port = launch.settings.port or _free_port(launch.settings.host)
        # The path is short because the server puts Unix sockets there. A folder of its own, so that nothing is left behind.
        scratch = tempfile.TemporaryDirectory(prefix="gradbus-sglang-", ignore_cleanup_errors=True)
        secret = Path(scratch.name) / "server.yaml"
        secret.touch(mode=0o600)
        secret.write_text(json.dumps({"api-key": launch.key, "admin-api-key": launch.key}))
        _set_aside(launch.log)
        try:
            with launch.log.open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *_guarded(_command(launch, port, secret)),
                    env=_environment(launch, scratch.name),
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            scratch.cleanup()
            raise EngineError("start_failed", f"cannot run {sys.executable} as the server's guard: {error}; fix its cause") from error
        return cls(process, port, scratch, launch)

    @property
    def pid(self) -> int:
        """Leader of the server's session and process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the first process is alive."""
        return self._process.returncode is None

    def failure(self, state: EngineFailure) -> EngineError:
        """The reason why it ended or did not come up: `state`, or `out_of_memory` if its log or the kernel says so.

        The first line names the error, and is the same for each start that fails in the same way.
        """
        log = self._log_tail()
        error = re.sub(rf"{re.escape(self._scratch.name)}[^\s'\"]*", "$TMPDIR", error_line(log))  # its name is another in each start
        ended = f"ended with status {self._process.returncode} ({error or 'its log is empty'})"
        said = "is still running" if self.running else ended  # the last line of a log that grows is no error, and another each time
        tail = f"its log ({self._launch.log}) ends with:\n{log[-_SHOWN_CHARACTERS:]}"
        killed = self._process.returncode in _KILLED and kernel_kills() > self._kills_before
        if killed or log_lacks_memory(log):
            found = "was killed by the kernel for memory" if killed else said
            flag = "rollout.memory_fraction, or --mem-fraction-static in GRADBUS_SGLANG_ARGUMENTS,"
            advice = f"give it more memory, lower rollout.slots, or set {flag} as its log says"
            return EngineError("out_of_memory", f"the SGLang server {found}; {advice}\n{tail}")
        advice = "set GRADBUS_SGLANG_PYTHON to a Python that has SGLang" if _NO_SGLANG in log else "correct what its log names"
        return EngineError(state, f"the SGLang server {said}; {advice}\n{tail}")

    async def kill(self) -> None:
        """Kills all its processes; returns when they are gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        with contextlib.suppress(TimeoutError, ProcessLookupError, PermissionError):
            async with asyncio.timeout(_GONE_SECONDS):
                while True:  # its children occupy the accelerator's memory until they are gone
                    os.killpg(self.pid, 0)
                    await asyncio.sleep(_GONE_POLL_SECONDS)
        self._scratch.cleanup()

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return self._launch.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return ""


def _set_aside(log: Path) -> None:
    """Keeps the log of the previous server, which may be the only record of why it ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.before"))


def _command(launch: LaunchConfig, port: int, secret: Path) -> list[str]:
    """The server's command. The key is in a file, because everyone on the machine can see arguments."""
    return [
        *(launch.settings.python, "-m", "sglang.launch_server"),
        *("--config", str(secret)),
        *("--model-path", str(launch.model)),
        *("--host", launch.settings.host),
        *("--port", str(port)),
        *("--max-running-requests", str(launch.config.slots + _PROBES * (launch.config.lora is not None))),
        "--skip-tokenizer-init",  # ids in, ids out
        "--skip-server-warmup",  # the first health check warms it up
        *("--log-level", "warning"),
        *(("--tp-size", str(launch.settings.tensor_parallel)) if launch.settings.tensor_parallel > 1 else ()),
        *([] if launch.config.lora is None else _adapter_flags(launch.config.lora)),
        *(_TURNS if launch.config.takes_turns else ()),
        *(() if launch.config.routes is None else ("--enable-return-routed-experts",)),
        *launch.settings.arguments,
        *(
            [] if launch.config.memory_fraction is None else ["--mem-fraction-static", str(launch.config.memory_fraction)]
        ),  # last: the trainer takes the rest
    ]


def _adapter_flags(lora: LoraSpec) -> list[str]:
    """Flags for LoRA. Strict loading: the server exits on a tensor that it cannot use, instead of ignoring it."""
    return [
        *("--enable-lora", "--lora-strict-loading"),
        *("--max-lora-rank", str(lora.rank)),
        *("--lora-target-modules", *served_modules(lora)),
    ]


def _guarded(command: list[str]) -> list[str]:
    """The command below a guard process, which ends all of the server when this process dies, however it dies."""
    return [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *command]


def _environment(launch: LaunchConfig, scratch: str) -> dict[str, str]:
    """The worker's environment without its GRADBUS_ variables and its numbers of threads."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS) and name not in _THREADS}
    settings = launch.settings
    turns = _TURNS_ENVIRONMENT if launch.config.takes_turns else {}
    threads = {} if settings.threads is None else dict.fromkeys(_THREADS, str(settings.threads))
    return inherited | threads | {"TMPDIR": scratch} | turns | settings.environment


def _check(settings: SGLangSettings) -> None:
    """Finds faults that would otherwise show late in the server's log, or never: another server may answer at the port."""
    if shutil.which(settings.python) is None:
        raise EngineError("start_failed", f"there is no program {settings.python}; set GRADBUS_SGLANG_PYTHON to a Python that has SGLang")
    if not settings.port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: closed connections do not count
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            advice = "end the process that has it, set GRADBUS_SGLANG_PORT to another, or to 0 for a free one"
            message = f"the server cannot have port {settings.port} of {settings.host} ({error.strerror}); {advice}"
            raise EngineError("start_failed", message) from None


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
