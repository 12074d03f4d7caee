"""Which services a stack runs, and the environment each of them gets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradbus.access import BUFFER_USERS, NATS_USERS
from gradbus.embedded.config import StackConfig
from gradbus.embedded.credentials import Credentials
from gradbus.embedded.ports import Ports
from gradbus.embedded.state import StateFolder
from gradbus.embedded.supervised import Program

REFERENCE: Final = "reference"
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "GRADBUS_LOG_LEVEL", "GRADBUS_KERNELS")
_PREFIXES_PASSED_ON: Final = ("GRADBUS_CRASH_", "GRADBUS_TRACE_", "GRADBUS_BROADCAST_", "OTEL_")
# Only the gateway fetches from the hub.
_HUB: Final = ("HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
_DEVICE: Final = ("GRADBUS_DEVICE", "CUDA_")
# How variables begin that an operator may set for one role. What the stack decides itself outranks them.
_PASSED_ON_TO: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway": (
        *_HUB,
        "GRADBUS_ALLOWED_HOSTS",
        "GRADBUS_MAX_",
        "GRADBUS_MODEL_ROOTS",
        "GRADBUS_REWARD_SERVICE",
        "GRADBUS_SERVED_HOSTS",
    ),
    "reward": (
        "GRADBUS_ALLOWED_HOSTS",
        "GRADBUS_ALLOW_UNISOLATED_NETWORK",
        "GRADBUS_CALLS_PER_SCORER",
        "GRADBUS_GRADER_PROCESSES",
        "GRADBUS_REWARD_SERVICE",
        "GRADBUS_SCORERS",
    ),
    "reference": (*_DEVICE, "GRADBUS_MICRO_BATCH_TOKENS", "GRADBUS_MODELS", "GRADBUS_THREADS", "GRADBUS_WAITING_CALLS"),
    "rollout": (*_DEVICE, "GRADBUS_ENGINE_", "GRADBUS_SGLANG_"),
    "trainer": (*_DEVICE, "GRADBUS_CHECKPOINT_BYTES", "GRADBUS_COLLECTIVE_SECONDS"),
    "weight_store": ("GRADBUS_STRAGGLER_",),
}
_MOST_CORES_TO_PIN: Final = 4
_LISTENERS: Final = ("weight_store", "reward", "reference", "gateway")


def service_names(rollouts: int) -> list[str]:
    """Processes in the order of their start; the reference joins when a run needs it."""
    return ["weight_store", "reward", "conductor", "gateway", "trainer-0", *(f"rollout-{number}" for number in range(rollouts))]


def role_of(name: str) -> str:
    """`rollout-3` is a `rollout`."""
    return name.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything a process's command and environment are made from."""

    config: StackConfig
    state: StateFolder
    credentials: Credentials
    ports: Ports

    def choose_ports(self, services: Sequence[str]) -> None:
        """Takes every port there will be, and remembers them. Raises StackError if the one asked for is taken."""
        if self.config.port:
            self.ports.claim("gateway", self.config.port, "--port")
        for name in ("nats", "buffer", *_LISTENERS, *(f"{service}.health" for service in services)):
            self.ports[name]
        self.state.write("ports.json", self.ports.known)

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return f"http://127.0.0.1:{self.ports['gateway']}"

    @property
    def buffer_url(self) -> str:
        """Where the buffer listens."""
        return f"redis://127.0.0.1:{self.ports['buffer']}/0"

    def service(self, name: str) -> Program:
        """A service, as it starts next."""
        command = [sys.executable, "-m", f"gradbus_{role_of(name)}"]
        return self._program(name, command, self._clients() | self._own(name))

    def server(self, name: str, command: list[str]) -> Program:
        """nats or the buffer: everything is in its configuration file."""
        return self._program(name, command, {})

    def _program(self, name: str, command: list[str], environment: dict[str, str]) -> Program:
        return Program(
            command=self.config.command_overrides.get(name, command),
            environment=_inherited() | environment | self.config.environment_overrides.get(name, {}),
            log=self.state.log_file(name),
            cores=cores_of(role_of(name)) if self.config.pin_cores else frozenset(),
        )

    def _clients(self) -> dict[str, str]:
        return {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "GRADBUS_NATS_URL": f"nats://127.0.0.1:{self.ports['nats']}",
            "GRADBUS_BUFFER_URL": self.buffer_url,
            "GRADBUS_OBJECTS_URL": self.state.objects.as_uri(),
            "GRADBUS_CACHE_DIR": str(self.state.cache),
            "GRADBUS_WEIGHT_STORE": f"127.0.0.1:{self.ports['weight_store']}",
            "GRADBUS_REWARD": f"127.0.0.1:{self.ports['reward']}",
            "GRADBUS_REFERENCE": f"127.0.0.1:{self.ports['reference']}",
        }

    def _own(self, name: str) -> dict[str, str]:
        role = role_of(name)
        own = _told(role) | {
            "GRADBUS_WORKER_ID": name,
            "GRADBUS_HEALTH": f"127.0.0.1:{self.ports[f'{name}.health']}",
            "GRADBUS_SECRETS_DIR": str(self.credentials.folder(role)),
        }
        if name in _LISTENERS:
            own["GRADBUS_LISTEN"] = f"127.0.0.1:{self.ports[name]}"
        if role in NATS_USERS:
            own["GRADBUS_NATS_USER"] = role
        if role in BUFFER_USERS:
            own["GRADBUS_BUFFER_USER"] = role
        # On loopback the user is the operator: scorers on this machine and Python graders are theirs to use.
        if role in {"reward", "gateway"}:
            own |= {"GRADBUS_ALLOW_LOOPBACK": "true", "GRADBUS_PYTHON_GRADERS": "true"}
        if role == "gateway":
            own["GRADBUS_API_KEYS_FILE"] = str(self.credentials.api_keys_file)
            if self.config.model_roots:
                own["GRADBUS_MODEL_ROOTS"] = json.dumps([str(root.absolute()) for root in self.config.model_roots])
        return own


def cores_of(role: str) -> frozenset[int]:
    """Cores of a role: one for the trainer, the others for everything else; empty where that does not help.

    The trainer's time then varies less, but its core idles while it waits for groups: on two cores that cost 8 % of
    the steps. With more than four a trainer of several threads needs several.
    """
    if sys.platform != "linux":
        return frozenset()
    first, *others = sorted(os.sched_getaffinity(0))
    if not 2 <= 1 + len(others) <= _MOST_CORES_TO_PIN:
        return frozenset()
    return frozenset({first}) if role == "trainer" else frozenset(others)


def _inherited() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key in _PASSED_ON or key.startswith(_PREFIXES_PASSED_ON)}


def _told(role: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith(_PASSED_ON_TO.get(role, ()))}
