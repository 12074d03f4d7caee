"""The configuration of an embedded stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradbus.deploy.layout import Layout
from gradbus.embedded.memory import default_limit
from gradbus.embedded.state import DEFAULT_STATE
from gradbus.errors import StackError


@dataclass(frozen=True, slots=True)
class StackConfig:
    """One embedded stack. Raises StackError for an invalid value."""

    state: Path = DEFAULT_STATE
    port: int = 8080
    """Port of the gateway; 0 chooses a free one and keeps it for later starts."""
    trainers: int = 1
    """Trainer workers: as many runs are trained at a time."""
    rollouts: int = 1
    layout: Layout | None = None
    """The devices of each worker; it has as many workers as `trainers` and `rollouts` say."""
    ready_seconds: float = 180.0
    """How long the start may take. A busy machine needs a minute; a process that crashes repeatedly ends the start earlier."""
    buffer_bytes: int = 2 << 30
    """Memory limit of the buffer; beyond it writes are refused and nothing is evicted."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Role to the bytes that one of its processes, or one rank, may take; the default is a share of this machine's memory."""
    model_roots: tuple[Path, ...] = ()
    """Folders of this machine whose models a run spec may name; none by default."""
    command_overrides: dict[str, list[str]] = field(default_factory=dict)
    """Process name to a command that replaces its own; read at each start of the process (fault tests use this)."""
    environment_overrides: dict[str, dict[str, str]] = field(default_factory=dict)
    """Process name to variables added to its environment; read at each start of the process."""

    def ranks(self, name: str) -> int:
        """Ranks of a process: of a trainer with several devices as many, of every other process one."""
        worker = self.layout.worker(name) if self.layout and name.startswith("trainer-") else None
        return len(worker.devices) if worker else 1

    def memory_limit(self, role: str) -> int:
        """Bytes that one process of a role may take, with its children; of a trainer with several ranks one rank."""
        trainers = sum(self.ranks(f"trainer-{number}") for number in range(self.trainers))
        return self.memory.get(role) or default_limit(role, {"trainer": trainers, "rollout": self.rollouts}.get(role, 1))

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise StackError(f"port {self.port} is out of range; give --port a number from 0 to 65535")
        if self.trainers < 1:
            raise StackError(f"{self.trainers} trainer workers cannot train; give --trainers 1 or more")
        if self.rollouts < 1:
            raise StackError(f"{self.rollouts} rollout workers cannot sample; give --rollouts 1 or more")
        if self.layout and (len(self.layout.trainers), len(self.layout.rollouts)) != (self.trainers, self.rollouts):
            raise StackError("the layout has other numbers of workers; leave --trainers and --rollouts out beside --layout")
