"""Settings of every process. Values come from `GRADBUS_*` variables, secrets from files with the lower-case names."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SecretsSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as NotJsonError

from gradbus.buffer import BufferSettings
from gradbus.bus import BusSettings
from gradbus.errors import SettingsError
from gradbus.objects import ObjectStore
from gradbus.rpc import RpcSettings

LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(str.upper)]


class ServerSettings(BaseSettings):
    """Addresses and credentials of NATS, the buffer and object storage."""

    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password: SecretStr = SecretStr("")
    nats_clustered: bool = Field(False, description="NATS is a cluster: make streams and buckets that can be replicated.")
    buffer_url: str = "redis://127.0.0.1:6379/0"
    buffer_user: str = ""
    buffer_password: SecretStr = SecretStr("")
    objects_url: str = Field("file:///var/lib/gradbus/objects", description="A folder (file://) or a bucket (s3://, gs://, az://).")
    objects_credentials: dict[str, SecretStr] = Field(default_factory=dict, description="E.g. access_key_id and secret_access_key.")

    @property
    def bus(self) -> BusSettings:
        """Settings of the bus."""
        return BusSettings(self.nats_url, self.nats_user, self.nats_password.get_secret_value(), self.nats_clustered)

    @property
    def buffer(self) -> BufferSettings:
        """Settings of the buffer."""
        return BufferSettings(self.buffer_url, self.buffer_user, self.buffer_password.get_secret_value())

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
    cache_dir: Path = Field(Path("/var/tmp/gradbus"), description="Models from object storage, and files before their upload.")  # noqa: S108

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            faults = [f"{_variable(str(fault['loc'][0]))}: {fault['msg']}" for fault in error.errors(include_input=False)]
            raise SettingsError(f"{'; '.join(faults)}; give it a valid value or leave it out") from None
        except NotJsonError as error:
            named = re.search(r'field "(\w+)"', str(error))
            variable = _variable(named[1]) if named else str(error)
            raise SettingsError(f'{variable} is not JSON; write a list as ["a", "b"] and an object as {{"a": "b"}}') from None

    @property
    def rpc(self) -> RpcSettings:
        """Settings of this process's gRPC server."""
        return RpcSettings(self.listen, self.rpc_callers)

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


def _variable(field: str) -> str:
    return f"GRADBUS_{field.upper()}"
