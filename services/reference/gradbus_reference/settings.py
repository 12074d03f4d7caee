"""Settings of the reference service."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings
from gradbus.user_services.addresses import TEACHER, AddressPolicy
from gradbus.user_services.keys import KeysByOrigin, ServiceKeys


class ReferenceSettings(ProcessSettings):
    """Memory, device and threads of the reference models, and the servers of teachers that may be asked."""

    models: int = Field(2, ge=1, le=64, description="Models in memory at once.")
    idle_seconds: float = Field(300.0, gt=0.0, description="A model that nobody has used for so long leaves memory.")
    offload_seconds: float = Field(
        5.0, gt=0.0, description="A reward model with `offload` that is idle for so long leaves the accelerator."
    )
    device: str = Field("cpu", description="cpu or cuda; CUDA_VISIBLE_DEVICES chooses the GPU, for Triton launches on the first.")
    threads: int = Field(1, ge=1, le=256, description="Torch threads: part of what decides bits.")
    micro_batch_tokens: int = Field(8192, ge=1, description="Tokens of one forward pass.")
    waiting_calls: int = Field(256, ge=1, description="Calls that may wait; more are refused.")
    allow_loopback: bool = Field(False, description="Whether `teacher.url` may lead to this machine.")
    teacher_hosts: tuple[str, ...] = Field((), description='Hosts that `teacher.url` may lead to, as a JSON list: ["teacher", "*.svc"].')
    teacher_keys: KeysByOrigin = Field({}, description='Keys of servers by origin, as JSON: {"http://127.0.0.1:30000": "sk-..."}.')

    @property
    def addresses(self) -> AddressPolicy:
        """Where servers of teachers may be."""
        return AddressPolicy(self.teacher_hosts, self.allow_loopback, TEACHER)

    @property
    def keys(self) -> ServiceKeys:
        """Of the servers that want one."""
        return ServiceKeys.of(self.teacher_keys)
