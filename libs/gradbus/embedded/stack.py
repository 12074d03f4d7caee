"""The embedded stack: servers first, then services, all of them supervised until the end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Any, Self

from gradbus.buffer import BufferSettings, load_functions, open_buffer
from gradbus.bus import BusSettings
from gradbus.deploy.credentials import Credentials
from gradbus.embedded.config import StackConfig
from gradbus.embedded.memory import watch_memory
from gradbus.embedded.ports import Ports
from gradbus.embedded.probes import Probe, buffer_ready, nats_ready, service_ready
from gradbus.embedded.processes import Program, SupervisedProcess, wait_until_gone
from gradbus.embedded.servers import buffer_command, nats_command
from gradbus.embedded.services import ON_DEMAND, ForkServers, StackPrograms, service_names
from gradbus.embedded.state import StateFolder
from gradbus.embedded.watches import watch_needs, watch_volume
from gradbus.errors import StackError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_SERVERS = ("nats", "buffer")
_SERVICE_STOP_SECONDS = 20.0
_SERVER_STOP_SECONDS = 10.0
_PROBE_EVERY_SECONDS = 0.1
_MOST_CRASHES = 5
"""After this many crashes before it is ready, waiting longer for a process does not help."""


class Stack:
    """`async with Stack(StackConfig(...)) as stack:` runs the whole system inside the block.

    Entering raises StackError when the folder is in use, the port taken, a binary missing, or a process not ready in time.
    """

    def __init__(self, config: StackConfig) -> None:
        self.config = config
        self.state = StateFolder(config.state)
        self._programs: StackPrograms  # made at the start, once the state folder is locked
        self._ports = Ports({})
        self._forks = ForkServers(self.state.logs)
        self._processes: dict[str, SupervisedProcess] = {}
        self._probes: dict[str, Probe] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._started = time.time()
        self._ready = False

    @property
    def url(self) -> str:
        """Address of the gateway."""
        return self._programs.url

    @property
    def api_key(self) -> str:
        """Token of the API key made at the first start."""
        return self._programs.credentials.api_key

    @property
    def processes(self) -> Mapping[str, SupervisedProcess]:
        """Process name to process, with its pid, state and restarts."""
        return self._processes

    async def kill(self, name: str) -> None:
        """Sends SIGKILL; returns when the process is gone. The supervisor restarts it."""
        await self._processes[name].kill()

    async def until_ready(self, names: Sequence[str], seconds: float) -> None:
        """Waits until each of `names` is ready. Raises StackError with the process that is not, and the end of its log."""
        before = {name: self._processes[name].restarts for name in names}
        waiting = list(names)
        deadline = time.monotonic() + seconds
        while True:
            answers = await asyncio.gather(*(self._probes[name]() for name in waiting))
            waiting = [name for name, ready in zip(waiting, answers, strict=True) if not ready]
            if not waiting:
                return
            crashes = {name: self._processes[name].restarts - before[name] for name in waiting}
            worst = max(crashes, key=crashes.__getitem__)
            if wrong := next((name for name in waiting if self._processes[name].has_wrong_settings), None):
                raise StackError(self._failure(f"{wrong} has a wrong setting", wrong))
            if crashes[worst] >= _MOST_CRASHES or time.monotonic() > deadline:
                problem = f"ended {crashes[worst]} times" if crashes[worst] else f"did not get ready in {seconds:.0f} s"
                raise StackError(self._failure(f"{worst} {problem}", worst))
            await asyncio.sleep(_PROBE_EVERY_SECONDS)

    async def __aenter__(self) -> Self:
        self.state.lock()
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stop()

    async def _start(self) -> None:
        deadline = time.monotonic() + self.config.ready_seconds
        await wait_until_gone(self.state.read("stack.json"))
        services = service_names(self.config.trainers, self.config.rollouts)
        self._ports = Ports(self.state.read("ports.json"))
        self._programs = programs = StackPrograms(self.config, self.state, Credentials(self.state.secrets), self._ports, self._forks)
        programs.check()
        programs.choose_ports([*services, *ON_DEMAND])
        self._start_servers()
        await self.until_ready(_SERVERS, deadline - time.monotonic())
        await self._load_functions()
        for name in services:
            self._start_service(name)
        self.state.write("gateway.json", {"url": self.url})
        self._watch("needs", watch_needs(self._bus_settings(), self._set_needed, self._programs.kept_seconds))
        self._watch("volume", watch_volume(self.state.nats, lambda: self.kill("nats")))
        self._watch("memory", watch_memory(self._memory_limits, self._kill_oversized))
        await self.until_ready(services, deadline - time.monotonic())
        self._ready = True
        self._write_state()

    def _start_servers(self) -> None:
        state, credentials, ports = self.state, self._programs.credentials, self._programs.ports
        commands = {
            "nats": nats_command(state, credentials, ports["nats"]),
            "buffer": buffer_command(state, credentials, ports["buffer"], self.config.buffer_bytes),
        }
        self._probes["nats"] = nats_ready(ports["nats"])
        self._probes["buffer"] = buffer_ready(ports["buffer"], "supervisor", credentials.buffer_password("supervisor"))
        for name, command in commands.items():

            def program(name: str = name, command: list[str] = command) -> Program:
                return self._programs.server(name, command)

            self._processes[name] = SupervisedProcess(name, program, self._write_state)
            self._processes[name].start()

    def _watch(self, subject: str, watching: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watching, name=f"watch {subject}")
        task.add_done_callback(_report_end)
        self._watches.append(task)

    def _start_service(self, name: str) -> None:
        self._probes[name] = service_ready(self._programs.ports[f"{name}.health"])
        self._processes[name] = SupervisedProcess(name, lambda: self._programs.service(name), self._write_state)
        self._processes[name].start()

    def _memory_limits(self) -> dict[int, int]:
        return {process.pid: process.memory for process in self._processes.values() if process.pid and process.memory}

    def _kill_oversized(self, pid: int, held: int) -> None:
        for process in self._processes.values():
            if process.pid == pid:
                process.kill_oversized(held)

    async def _load_functions(self) -> None:
        url, password = self._programs.buffer_url, self._programs.credentials.buffer_password("supervisor")
        client = open_buffer(BufferSettings(url, "supervisor", password))
        try:
            await load_functions(client)
        finally:
            await client.aclose()

    async def _set_needed(self, needed: AbstractSet[str]) -> None:
        for name in ON_DEMAND:
            running = name in self._processes
            if name in needed and not running:
                self._start_service(name)
            elif running and name not in needed:
                await self._processes[name].stop(_SERVICE_STOP_SECONDS)
                del self._processes[name]
                self._write_state()

    async def _stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        services = [process for name, process in self._processes.items() if name not in _SERVERS]
        await asyncio.gather(*(process.stop(_SERVICE_STOP_SECONDS) for process in services))
        await self._forks.close()
        for name in ("buffer", "nats"):
            if name in self._processes:
                await self._processes[name].stop(_SERVER_STOP_SECONDS)
        self._ports.release()
        self.state.remove("stack.json")
        self.state.remove("gateway.json")
        self.state.unlock()

    def _bus_settings(self) -> BusSettings:
        port = self._programs.ports["nats"]
        return BusSettings(f"nats://127.0.0.1:{port}", "supervisor", self._programs.credentials.nats_password("supervisor"))

    def _write_state(self) -> None:
        """Writes the current state to stack.json, which `status` and `down` read."""
        known = self._programs.ports.known
        processes = {
            name: {
                "state": process.state,
                "pid": process.pid,
                "restarts": process.restarts,
                "ended": process.ended,
                "started": process.started,
                "health_port": known.get(f"{name}.health"),
            }
            for name, process in self._processes.items()
        }
        self.state.write(
            "stack.json", {"pid": os.getpid(), "started": self._started, "ready": self._ready, "url": self.url, "processes": processes}
        )

    def _failure(self, problem: str, name: str) -> str:
        tail = "\n".join(f"  {line}" for line in self.state.log_tail(name).splitlines())
        return f"{problem}; the end of its log:\n{tail}\nfix the error and start again; the whole log: {self.state.logs / f'{name}.log'}"


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("watch_failed", task=task.get_name(), error=f"{type(error).__name__}: {error}")
