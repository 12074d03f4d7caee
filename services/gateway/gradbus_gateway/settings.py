"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from gradbus.process import ProcessSettings


class GatewaySettings(ProcessSettings):
    """Settings of the gateway, beyond those of every process."""

    weight_store: str = Field("127.0.0.1:0", description="host:port of the weight store.")
    api_keys_file: Path = Field(Path("/etc/gradbus/api-keys.json"), description="Records of the API keys; read again when it changes.")
    model_roots: tuple[Path, ...] = Field((), description="Folders of this machine whose models and datasets a spec may name by path.")
    served_hosts: tuple[str, ...] = Field((), description="Names besides localhost under which browsers may open the web UI.")
    allowed_hosts: tuple[str, ...] = Field((), description="Host patterns that `reward.service` may name, e.g. `*.rewards.svc`.")
    allow_loopback: bool = Field(False, description="Whether `reward.service` may lead to this machine.")
    python_graders: bool = Field(False, description="Whether users may send Python source as a grader.")
    reward_service: str = Field("", description="Scorer of every run, whatever its spec says; empty: the spec decides.")
    max_file_bytes: int = Field(32 << 30, ge=1, description="Size limit of an upload.")
    max_dataset_bytes: int = Field(64 << 20, ge=1, description="Size limit of a dataset.")
