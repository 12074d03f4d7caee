"""The services of a stack, and the command and environment of each process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gradbus.access import CALLERS
from gradbus.deploy.credentials import Credentials
from gradbus.deploy.layout import CPU, check_device, check_layout, device_environment
from gradbus.deploy.roles import DEVICE_SETTINGS, ROLES, SHARED_SETTINGS, Placement, Role, role_environment
from gradbus.embedded.config import StackConfig
from gradbus.embedded.forks.client import ForkServer
from gradbus.embedded.ports import Ports
from gradbus.embedded.processes import Fork, Program
from gradbus.embedded.servers import ENVIRONMENT
from gradbus.embedded.state import StateFolder

ON_DEMAND: Final = ("reference", "environment", "agent")
"""Services that run only while a run needs them and for a moment after it."""
_INHERITED: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ"),
    *("PYTHONPATH", "LD_LIBRARY_PATH"),  # a service finds the packages and the GPU's libraries that the stack itself finds
    *("GRADBUS_LOG_LEVEL", "GRADBUS_KERNELS", "NUMBA_CACHE_DIR"),
)
_DEVICE: Final = "GRADBUS_DEVICE"
_RUN_USERS_PYTHON: Final[Mapping[str, str]] = {
    "reward": "GRADBUS_PYTHON_GRADERS",
    "gateway": "GRADBUS_PYTHON_GRADERS",
    "environment": "GRADBUS_PYTHON_ENVIRONMENTS",
}
"""Role to the variable that lets it run, or accept, users' Python."""
_KEPT_SECONDS: Final = 10.0
"""Runs that somebody submits one after the other do not start a service each: it takes seconds, most of them to import torch."""
_ONE_THREAD: Final[Mapping[str, str]] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LAUNCHER_BYTES: Final = 1 << 30
"""What torchrun may take beside the ranks: it imports torch."""


def service_names(trainers: int, rollouts: int) -> list[str]:
    """Names of the processes in the order of their start, without those that are started when a run needs them."""
    workers = [f"{role}-{number}" for role, count in (("trainer", trainers), ("rollout", rollouts)) for number in range(count)]
    return ["weight_store", "reward", "conductor", "gateway", *workers]


def role_of(name: str) -> str:
    """The role of a process: `rollout-3` is a `rollout`."""
    return name.partition("-")[0]


class ForkServers:
    """The fork servers of a stack: one of the services that load a model, and one without torch and the memory that it takes."""

    def __init__(self, logs: Path) -> None:
        # Modules may read these while they are imported.
        environment = {**_from_operator(_INHERITED, (*SHARED_SETTINGS, *DEVICE_SETTINGS)), **_ONE_THREAD}
        shared, log = ("gradbus.process", "gradbus.rpc.server"), logs / "fork_server.log"
        self.others = ForkServer(shared, environment, log)
        self.computing = ForkServer((*shared, "gradbus_kernels.models.causal_lm"), environment, log)

    async def close(self) -> None:
        """Ends both, and with them what they forked."""
        await self.others.close()
        await self.computing.close()


@dataclass(frozen=True, slots=True)
class StackPrograms:
    """Makes the command and the environment of each process of one stack."""

    config: StackConfig
    state: StateFolder
    credentials: Credentials
    ports: Ports
    forks: ForkServers | None = None
    """None: each service is a process of its own from the start."""

    def check(self) -> None:
        """Raises StackError if this machine lacks what the configuration or the operator's variables ask for."""
        if self.config.layout:
            check_layout(self.config.layout, os.environ)
        else:
            check_device(os.environ.get(_DEVICE, ""), os.environ)

    def choose_ports(self, services: Sequence[str]) -> None:
        """Chooses every port of the stack and stores them. Raises StackError if the requested one is taken."""
        if self.config.port:
            self.ports.claim("gateway", self.config.port, "--port")
        servers = [role.name for role in ROLES.values() if role.serves]
        agents = [_agents_port(role.name) for role in ROLES.values() if role.serves_agents]
        for name in ("nats", "buffer", *servers, *agents, *(f"{service}.health" for service in services)):
            self.ports[name]
        self.state.write("ports.json", self.ports.known)

    @property
    def kept_seconds(self) -> float:
        """How long a service on demand stays after the last run that needed it; not on a GPU, whose memory the next run may want."""
        return _KEPT_SECONDS if self.config.layout is None and os.environ.get(_DEVICE, CPU) == CPU else 0.0

    @property
    def url(self) -> str:
        """Address of the gateway."""
        return f"http://127.0.0.1:{self.ports['gateway']}"

    @property
    def buffer_url(self) -> str:
        """Address of the buffer."""
        return f"redis://127.0.0.1:{self.ports['buffer']}/0"

    def service(self, name: str) -> Program:
        """The program of a service process; read anew at each start."""
        role = ROLES[role_of(name)]
        ranks = self.config.ranks(name)
        program = self._program(
            name, [sys.executable, *(_torchrun(ranks) if ranks > 1 else ()), "-m", role.module], self._environment(name, role)
        )
        launcher = _LAUNCHER_BYTES if ranks > 1 else 0
        return replace(program, memory=self.config.memory_limit(role.name) * ranks + launcher, fork=self._fork(name, role, program))

    def _fork(self, name: str, role: Role, program: Program) -> Fork | None:
        """None for a process of its own kind: what it imports may depend on its command, its environment or its GPU."""
        changed = name in self.config.command_overrides or name in self.config.environment_overrides
        own = changed or self.config.ranks(name) > 1 or program.environment.get(_DEVICE, CPU) != CPU
        if self.forks is None or own or sys.platform != "linux":
            return None
        return Fork(self.forks.computing if role.computes else self.forks.others, role.module)

    def server(self, name: str, command: list[str]) -> Program:
        """The program of NATS or of the buffer; everything else is in its configuration file."""
        return replace(self._program(name, command, dict(ENVIRONMENT.get(name, {}))), logs_json=False)

    def _program(self, name: str, command: list[str], environment: dict[str, str]) -> Program:
        return Program(
            command=self.config.command_overrides.get(name, command),
            environment=_from_operator(_INHERITED, SHARED_SETTINGS) | environment | self.config.environment_overrides.get(name, {}),
            log=self.state.log_file(name),
        )

    def _environment(self, name: str, role: Role) -> dict[str, str]:
        environment = _from_operator((), role.operator_settings) | role_environment(role, self._placement(name, role))
        environment |= {"GRADBUS_WORKER_ID": name, **_ONE_THREAD}
        if role.computes:
            environment |= self._devices(name, environment)
        if environment.get(_DEVICE, CPU) == CPU:  # a GPU's driver reserves far more than it takes
            environment["GRADBUS_MEMORY_LIMIT"] = str(self.config.memory_limit(role.name))
        # On loopback the user is the operator, so scorers on this machine and Python graders are allowed.
        if role.name in _RUN_USERS_PYTHON:
            environment |= {"GRADBUS_ALLOW_LOOPBACK": "true", _RUN_USERS_PYTHON[role.name]: "true"}
        if role.name == "reference":
            environment["GRADBUS_ALLOW_LOOPBACK"] = "true"  # teachers on this machine, too
        if role.serves_agents:
            url = f"http://{environment['GRADBUS_HTTP_LISTEN']}"
            environment = {"GRADBUS_PUBLIC_URL": url, "GRADBUS_ALLOW_LOOPBACK": "true"} | environment
        if role.name == "gateway" and self.config.model_roots:
            environment["GRADBUS_MODEL_ROOTS"] = json.dumps([str(root.absolute()) for root in self.config.model_roots])
        return environment

    def _devices(self, name: str, environment: Mapping[str, str]) -> dict[str, str]:
        """The devices of a process that computes: the layout's, or the operator's GPU by its number."""
        worker = self.config.layout.worker(name) if self.config.layout else None
        if worker is None:
            device = environment.get(_DEVICE, "")
            return device_environment((device,), environment) if device.startswith("cuda:") else {}
        found = device_environment(worker.devices, environment)
        if role_of(name) == "rollout":
            found["GRADBUS_SGLANG_TENSOR_PARALLEL"] = str(len(worker.devices))
        return found

    def _placement(self, name: str, role: Role) -> Placement:
        return Placement(
            nats_url=f"nats://127.0.0.1:{self.ports['nats']}",
            buffer_url=self.buffer_url,
            objects_url=self.state.objects.as_uri(),
            grpc={server: f"127.0.0.1:{self.ports[server]}" for server in CALLERS},
            secrets_dir=str(self.credentials.folder(role.name)),
            cache_dir=str(self.state.cache),
            health=f"127.0.0.1:{self.ports[f'{name}.health']}",
            listen=f"127.0.0.1:{self.ports[name]}" if role.serves else "",
            http_listen=f"127.0.0.1:{self.ports[_agents_port(role.name)]}" if role.serves_agents else "",
        )


def _agents_port(role: str) -> str:
    """Name of the port by which agents reach a role."""
    return f"{role}.http"


def _torchrun(ranks: int) -> list[str]:
    """Arguments of Python that start so many ranks, which meet on loopback."""
    addresses = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1")
    return ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks), *addresses]


def _from_operator(names: tuple[str, ...], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables of this process's environment that a service inherits. Values that the stack sets itself override them."""
    return {key: value for key, value in os.environ.items() if key in names or key.startswith(prefixes)}
