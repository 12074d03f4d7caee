"""Settings of every process. Values come from `GRADBUS_*` variables, secrets from files with the lower-case names."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SecretsSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as NotJsonError

from gradbus.buffer import BufferSettings
from gradbus.bus import BusSettings
from gradbus.errors import SettingsError
from gradbus.objects import ObjectStore
from gradbus.rpc import RpcSettings
from gradbus.tls import Certificate, Identity, read_identity

Folder = Annotated[Path | None, BeforeValidator(lambda given: given or None)]
"""A folder; none if the variable is empty."""
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(str.upper)]


class ServerSettings(BaseSettings):
    """Addresses and credentials of NATS, the buffer and object storage."""

    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password: SecretStr = SecretStr("")
    nats_replicas: int = Field(1, ge=1, le=5, description="Servers of a NATS cluster that have each stream and bucket; 1: one server.")
    buffer_url: str = "redis://127.0.0.1:6379/0"
    buffer_user: str = ""
    buffer_password: SecretStr = SecretStr("")
    tls_dir: Folder = Field(None, description="Folder of tls.crt, tls.key and ca.crt, for mutual TLS with NATS, the buffer and services.")
    objects_url: str = Field("file:///var/lib/gradbus/objects", description="A folder (file://) or a bucket (s3://, gs://, az://).")
    objects_credentials: dict[str, SecretStr] = Field(default_factory=dict, description="E.g. access_key_id and secret_access_key.")

    @cached_property
    def identity(self) -> Identity | None:
        """The process's certificate, if it has one. Raises SettingsError when it cannot be used."""
        return read_identity(self.tls_dir) if self.tls_dir else None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates that this process shows."""
        return (self.identity,) if self.identity else ()

    @property
    def bus(self) -> BusSettings:
        """Settings of the bus."""
        return BusSettings(self.nats_url, self.nats_user, self.nats_password.get_secret_value(), self.nats_replicas, self.identity)

    @property
    def buffer(self) -> BufferSettings:
        """Settings of the buffer."""
        return BufferSettings(self.buffer_url, self.buffer_user, self.buffer_password.get_secret_value(), self.identity)

    def open_objects(self) -> ObjectStore:
        """The object storage. Raises SettingsError when the URL names no known storage."""
        return ObjectStore.open(self.objects_url, {name: secret.get_secret_value() for name, secret in self.objects_credentials.items()})


class ProcessSettings(ServerSettings):
    """Name, addresses and credentials of a process. Raises SettingsError, which names each invalid variable."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_", extra="ignore")

    worker_id: str = Field(default_factory=socket.gethostname, description="Name of this process, the same after a restart.")
    listen: str = Field("127.0.0.1:0", description="Address of this process's gRPC or REST server.")
    health: str = Field("127.0.0.1:0", description="Address of /healthz and /readyz; bind it beyond loopback for probes from outside.")
    log_level: LogLevel = "INFO"
    rpc_token: SecretStr = Field(SecretStr(""), description="Token that this process sends to gRPC servers.")
    rpc_callers: dict[str, str] = Field(
        default_factory=dict, description="For a gRPC server: each caller's role and the SHA-256 of its token."
    )
    frozen_seconds: float = Field(60.0, ge=1.0, description="A process whose event loop does not run for so long ends, to be restarted.")
    memory_limit: ByteSize | None = Field(None, description="Allocations beyond it fail, e.g. 8GiB; set no limit where a GPU is used.")
    leftover_memory: ByteSize = Field(ByteSize(100_000_000), description="A worker that keeps more of an ended run than this is restarted.")
    cache_dir: Path = Field(Path("/var/tmp/gradbus"), description="Models from object storage, and files before their upload.")  # noqa: S108

    def __init__(self, **given: Any) -> None:
        with named_variables("GRADBUS_"):
            super().__init__(**given)

    @property
    def rpc(self) -> RpcSettings:
        """Settings of this process's gRPC server."""
        return RpcSettings(self.listen, self.rpc_callers, self.identity)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library names the parameters
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then environment, then the files in `GRADBUS_SECRETS_DIR`."""
        secrets = os.environ.get("GRADBUS_SECRETS_DIR")
        files = (SecretsSettingsSource(settings_cls, secrets_dir=secrets),) if secrets else ()
        return (init_settings, env_settings, *files)


@contextmanager
def named_variables(prefix: str) -> Iterator[None]:
    """For a block that reads settings from variables with this prefix: its errors become a SettingsError, which names each variable."""
    try:
        yield
    except ValidationError as error:
        faults = [f"{prefix}{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors(include_input=False)]
        raise SettingsError(f"{'; '.join(faults)}; give it a valid value or leave it out") from None
    except NotJsonError as error:
        named = re.search(r'field "(\w+)"', str(error))
        variable = prefix + named[1].upper() if named else str(error)
        raise SettingsError(f'{variable} is not JSON; write a list as ["a", "b"] and an object as {{"a": "b"}}') from None
