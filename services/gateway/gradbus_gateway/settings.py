"""Settings of the gateway."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from gradbus.process import ProcessSettings, named_variables
from gradbus.process.settings import Folder
from gradbus.spec import DEFAULT_QUEUE
from gradbus.tls import Certificate, read_certificate
from gradbus.user_services.keys import KeysByOrigin


class _Group(BaseSettings):
    """Settings with a prefix of their own, from the sources of every process. Raises SettingsError, which names each invalid variable."""

    def __init__(self, **given: Any) -> None:
        with named_variables(self.model_config["env_prefix"]):
            super().__init__(_secrets_dir=os.environ.get("GRADBUS_SECRETS_DIR") or None, **given)


class ConnectionLimits(_Group):
    """`GRADBUS_CONNECTIONS_*`: what a client may do before it is known. Each replica counts for itself. 0 is no limit."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_CONNECTIONS_", extra="ignore")

    total: int = Field(4096, ge=0, description="Open connections; fewer if the process may open fewer files.")
    per_address: int = Field(2048, ge=0, description="Open connections of one address; behind a proxy all clients have one.")
    head_bytes: int = Field(32 << 10, ge=1024, le=1 << 20, description="Size limit of a request's first line and headers.")
    head_count: int = Field(100, ge=16, le=1000, description="Number of headers of a request.")
    head_seconds: float = Field(10.0, ge=0, description="Time to send the first line and the headers.")
    body_grace_seconds: float = Field(10.0, gt=0, description="Time before `body_bytes_per_second` applies.")
    body_bytes_per_second: float = Field(1024.0, ge=0, description="Slowest rate of a body, on average from its beginning.")
    write_seconds: float = Field(30.0, ge=0, description="Longest time in which a client reads nothing of a response.")


class RequestLimits(_Group):
    """`GRADBUS_LIMIT_*`: what one key or one address may do at a time. Each replica counts for itself. 0 is no limit."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_LIMIT_", extra="ignore")

    requests_per_second: float = Field(200.0, ge=0, description="Requests of one key.")
    request_burst: int = Field(1000, ge=1, description="Requests of one key at once after a pause.")
    requests: int = Field(64, ge=0, description="Requests of one key in progress, followers left out.")
    lists: int = Field(4, ge=0, description="Lists that one key reads at a time; further ones wait.")
    followers: int = Field(200, ge=0, description="Event streams that one key follows.")
    followers_total: int = Field(2000, ge=0, description="Event streams that all keys follow.")
    uploads: int = Field(4, ge=0, description="Uploads of one key in progress.")
    uploads_total: int = Field(16, ge=0, description="Uploads of all keys in progress.")
    sign_ins_per_minute: float = Field(60.0, ge=0, description="Sign-in links of one key, and attempts to sign in from one address.")
    sign_in_burst: int = Field(30, ge=1, description="Sign-in links, or attempts, at once after a pause.")
    unauthenticated_per_second: float = Field(50.0, ge=0, description="Requests without a valid key from one address, pages included.")
    unauthenticated_burst: int = Field(400, ge=1, description="Requests without a valid key at once after a pause.")


class Quotas(_Group):
    """`GRADBUS_QUOTA_*`: what one key may own. 0 is no limit."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_QUOTA_", extra="ignore")

    unfinished_runs: int = Field(10_000, ge=0, description="Runs that have not ended.")
    runs: int = Field(100_000, ge=0, description="Runs in all; deleted runs do not count.")
    uploaded_bytes: int = Field(1 << 40, ge=0, description="Bytes of uploaded files.")
    uploaded_files: int = Field(10_000, ge=0, description="Uploaded files.")


class TeacherSettings(_Group):
    """`GRADBUS_TEACHER_*`: the servers that `teacher.url` may name, as of the reference service."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_TEACHER_", extra="ignore")

    hosts: tuple[str, ...] = Field((), description="Host patterns of the servers.")
    keys: KeysByOrigin = Field({}, description="Keys of the servers that want one, by origin.")


class Queues(_Group):
    """`GRADBUS_QUEUES`: where runs may wait for trainers."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_", extra="ignore")

    queues: tuple[str, ...] = Field((DEFAULT_QUEUE,), description="Queues that a run spec may name; each needs trainers that serve it.")


class GatewaySettings(ProcessSettings):
    """Settings of the gateway, beyond those of every process."""

    weight_store: str = Field("127.0.0.1:0", description="host:port of the weight store.")
    api_keys_file: Path = Field(Path("/etc/gradbus/api-keys.json"), description="Records of the API keys; read again when it changes.")
    model_roots: tuple[Path, ...] = Field((), description="Folders of this machine whose models and datasets a spec may name by path.")
    https_dir: Folder = Field(None, description="Folder of tls.crt and tls.key: the gateway then speaks HTTPS alone.")
    served_hosts: tuple[str, ...] = Field((), description="Names besides localhost under which browsers may open the web UI.")
    allowed_hosts: tuple[str, ...] = Field((), description="Host patterns that `reward.service` may name, e.g. `*.rewards.svc`.")
    allow_loopback: bool = Field(False, description="Whether `reward.service` and `teacher.url` may lead to this machine.")
    reward_modules: tuple[str, ...] = Field((), description="Installed modules whose functions may be graders, as of the reward service.")
    python_graders: bool = Field(False, description="Whether users may send graders of type `python` and `code`.")
    reward_service: str = Field("", description="Scorer of every run, whatever its spec says; empty: the spec decides.")
    max_file_bytes: int = Field(32 << 30, ge=1, description="Size limit of an upload.")
    max_dataset_bytes: int = Field(8 << 30, ge=1, description="Size limit of a dataset, as files and as rows.")
    max_model_bytes: int = Field(320 << 30, ge=1, description="Size limit of a model, from the hub or from anywhere else.")
    max_hub_seconds: float = Field(3600.0, gt=0.0, description="Time limit of a download from the hub.")
    hf_token: SecretStr = Field(SecretStr(""), description="Token for gated and private models of the hub.")

    @cached_property
    def https(self) -> Certificate | None:
        """The certificate shown to clients, if it speaks HTTPS. Raises SettingsError when it cannot be used."""
        return read_certificate(self.https_dir) if self.https_dir else None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates that the gateway shows to services and to clients."""
        return (*super().certificates, *((self.https,) if self.https else ()))
