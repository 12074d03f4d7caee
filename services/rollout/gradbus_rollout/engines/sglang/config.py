"""Settings of the engine: those of the run, and the worker's `GRADBUS_SGLANG_*` variables."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from gradbus.spec import LoraSpec
from gradbus_rollout.engines.base import RouteShape

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True, slots=True)
class SGLangConfig:
    """Settings from the run's spec."""

    slots: int = 64
    """Samples on the server at a time; further samples wait in the worker."""
    max_new_tokens: int = 128
    temperature: float = 1.0
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    max_prompt_tokens: int | None = None
    """None: as long as the model's context has room for."""
    pause: PauseMode = "retract"
    """How samples in flight go on over a load: see `docs/engines.md`."""
    lora: LoraSpec | None = None
    """Set for a LoRA run, whose versions are adapters. Samples in flight keep the adapters that they began with."""
    memory_fraction: float | None = None
    """Share of the device's memory for weights and cache; None: the server's own default."""
    takes_turns: bool = False
    """Whether the server frees its device's memory for a trainer's turns."""
    routes: RouteShape | None = None
    """Set for a run that replays routes: those that samples return."""


class SGLangSettings(BaseSettings):
    """`GRADBUS_SGLANG_*`: how to launch the server, or where it is."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_SGLANG_", extra="ignore")

    url: str = Field("", description="Attach to this server; empty: launch one.")
    key: SecretStr = Field(SecretStr(""), description="API and admin key of a server attached to; a launched one gets a fresh key.")
    python: str = Field(sys.executable, description="Python that has SGLang, for launching.")
    arguments: tuple[str, ...] = Field((), description="More flags for `sglang.launch_server`, a JSON list.")
    environment: dict[str, str] = Field({}, description="More variables for the launched server, a JSON object.")
    threads: int | None = Field(None, ge=1, description="OMP_NUM_THREADS of the launched server; unset: the server's own choice.")
    tensor_parallel: int = Field(1, ge=1, description="Devices over which the launched server divides the model.")
    host: str = Field("127.0.0.1", description="Address the launched server binds.")
    port: int = Field(0, ge=0, le=65535, description="Its port; 0: a free one.")
    weights_dir: Path | None = Field(None, description="Folder for versions that worker and server both see; unset: in the cache.")
    copy_weights: bool = Field(False, description="Copy shards there instead of linking them: for a server that sees only that folder.")
    start_seconds: float = Field(900.0, gt=0, description="How long a start may take.")
    load_seconds: float = Field(600.0, gt=0, description="How long one call of a weight update may take.")
    health_seconds: float = Field(120.0, gt=0, description="How long a server that lost a connection may answer nothing; then it is dead.")
    sample_seconds: float = Field(3600.0, gt=0, description="How long one sample may take; then the server counts as hung.")
