"""The roles of a deployment: one table that the embedded stack and docker-compose.yml are rendered from.

A role is a service. What it may do on the bus, on the buffer and over gRPC stands in `gradbus.access.table`; this table refers to it and
adds the process: its module, addresses, environment and secrets. Nothing here imports a service or torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gradbus.access import BUFFER_USERS, CALLERS, NATS_USERS, host_name
from gradbus.tls import FILES

_PORTS: Final = {"": 0, "grpc": 50051, "rest": 8080}
AGENTS_PORT: Final = 8080
"""Port in a container by which agents reach a role."""
HEALTH_PORT: Final = 8081
"""Port of the health pages in a container."""
DEVICE_SETTINGS: Final = ("GRADBUS_DEVICE", "CUDA_", "CUBLAS_WORKSPACE_CONFIG", "NCCL_", "PYTORCH_", "TRITON_CACHE_DIR")
# Only the gateway downloads models from the hub.
_HUB: Final = ("HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "GRADBUS_HF_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")


@dataclass(frozen=True, slots=True)
class Role:
    """One service of the system."""

    name: str
    """Its user on NATS and on the buffer, its name as a gRPC caller, and the folder of its secrets."""
    serves: Literal["", "grpc", "rest"] = ""
    serves_agents: bool = False
    """Whether agents reach it over HTTP, beside its gRPC server."""
    stores_objects: bool = True
    """Whether it reads or writes object storage."""
    computes: bool = False
    """Whether it loads a model: it needs torch, and keeps downloaded models in its cache folder."""
    operator_settings: tuple[str, ...] = ()
    """Names of variables, or how they begin, that an operator may set for this role alone."""

    @property
    def module(self) -> str:
        """The module that runs it: `python -m MODULE`."""
        return f"gradbus_{self.name}"

    @property
    def hostname(self) -> str:
        """Its host name, and the name of its container."""
        return host_name(self.name)

    @property
    def port(self) -> int:
        """The port of its gRPC or REST server in a container; 0 when it serves nothing."""
        return _PORTS[self.serves]

    @property
    def uses_nats(self) -> bool:
        """Whether it has a user on NATS."""
        return self.name in NATS_USERS

    @property
    def uses_buffer(self) -> bool:
        """Whether it has a user on the buffer."""
        return self.name in BUFFER_USERS

    @property
    def calls(self) -> tuple[str, ...]:
        """The gRPC servers that it calls."""
        return tuple(server for server, callers in CALLERS.items() if self.name in callers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The files in its secrets folder."""
        files = {
            "gradbus_nats_password": self.uses_nats,
            "gradbus_buffer_password": self.uses_buffer,
            "gradbus_objects_credentials": self.stores_objects,
            "gradbus_rpc_token": bool(self.calls),
            "gradbus_rpc_callers": self.serves == "grpc",
            "api-keys.json": self.serves == "rest" or self.serves_agents,
            **dict.fromkeys(FILES, True),
        }
        return tuple(name for name, has in files.items() if has)


ROLES: Final[Mapping[str, Role]] = {
    role.name: role
    for role in (
        Role("weight_store", serves="grpc", operator_settings=("GRADBUS_BLOB_", "GRADBUS_LAGGING_")),
        Role(
            "reward",
            serves="grpc",
            stores_objects=False,
            operator_settings=(
                "GRADBUS_ALLOWED_HOSTS",
                "GRADBUS_ALLOW_UNISOLATED_NETWORK",
                "GRADBUS_CALLS_PER_SCORER",
                "GRADBUS_GRADER_PROCESSES",
                "GRADBUS_MAX_GRADER_PROCESSES",
                "GRADBUS_MAX_SANDBOXES",
                "GRADBUS_REWARD_MODULES",
                "GRADBUS_REWARD_SERVICE",
                "GRADBUS_SCORERS",
                "GRADBUS_SERVICE_KEYS",
            ),
        ),
        Role(
            "environment",
            serves="grpc",
            stores_objects=False,
            operator_settings=(
                "GRADBUS_ALLOWED_HOSTS",
                "GRADBUS_ALLOW_UNISOLATED_NETWORK",
                "GRADBUS_CHILDREN",
                "GRADBUS_IN_GVISOR",
                "GRADBUS_MAX_CHILDREN",
                "GRADBUS_MAX_MCP_PROCESSES",
                "GRADBUS_MAX_SANDBOXES",
                "GRADBUS_MCP_COMMANDS",
                "GRADBUS_SESSION_SECONDS",
            ),
        ),
        Role(
            "agent",
            serves="grpc",
            serves_agents=True,
            stores_objects=False,
            operator_settings=(
                "GRADBUS_AGENT_COMMANDS",
                "GRADBUS_ALLOWED_HOSTS",
                "GRADBUS_MAX_AGENT_PROCESSES",
                "GRADBUS_PUBLIC_URL",
                "GRADBUS_SESSION_SECONDS",
            ),
        ),
        Role(
            "reference",
            serves="grpc",
            computes=True,
            operator_settings=(
                *DEVICE_SETTINGS,
                "GRADBUS_IDLE_SECONDS",
                "GRADBUS_MICRO_BATCH_TOKENS",
                "GRADBUS_MODELS",
                "GRADBUS_OFFLOAD_SECONDS",
                "GRADBUS_TEACHER_",
                "GRADBUS_THREADS",
                "GRADBUS_WAITING_CALLS",
            ),
        ),
        Role("conductor", operator_settings=("GRADBUS_KEEP_", "GRADBUS_RUN_BUFFER_BYTES")),
        Role(
            "trainer",
            computes=True,
            operator_settings=(
                *DEVICE_SETTINGS,
                "GRADBUS_CHECKPOINT_BYTES",
                "GRADBUS_COLLECTIVE_SECONDS",
                "GRADBUS_FOLDER_DELTAS",
                "GRADBUS_QUEUE",
            ),
        ),
        Role(
            "rollout", computes=True, operator_settings=(*DEVICE_SETTINGS, "GRADBUS_ENGINE_", "GRADBUS_KEPT_PREFIX_MIB", "GRADBUS_SGLANG_")
        ),
        Role(
            "gateway",
            serves="rest",
            operator_settings=(
                *_HUB,
                "GRADBUS_ALLOWED_HOSTS",
                "GRADBUS_CONNECTIONS_",
                "GRADBUS_LIMIT_",
                "GRADBUS_MAX_",
                "GRADBUS_MODEL_ROOTS",
                "GRADBUS_QUEUES",
                "GRADBUS_QUOTA_",
                "GRADBUS_REWARD_MODULES",
                "GRADBUS_REWARD_SERVICE",
                "GRADBUS_SERVED_HOSTS",
                "GRADBUS_TEACHER_",
            ),
        ),
    )
}
SHARED_SETTINGS: Final = (
    "GRADBUS_BROADCAST_",
    "GRADBUS_CRASH_",
    "GRADBUS_FROZEN_SECONDS",
    "GRADBUS_LEFTOVER_MEMORY",
    "GRADBUS_NATS_REPLICAS",
    "GRADBUS_TRACE_",
    "OTEL_",
)
"""Names of variables, or how they begin, that an operator may set for every role."""


def address_variable(server: str) -> str:
    """The variable with the address of a gRPC server."""
    # A process's environment is something else.
    return "GRADBUS_ENVIRONMENT_ADDRESS" if server == "environment" else f"GRADBUS_{server.upper()}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one process finds its servers, folders and addresses."""

    nats_url: str
    buffer_url: str
    objects_url: str
    grpc: Mapping[str, str]
    """Role of a gRPC server to the `host:port` that callers use."""
    secrets_dir: str
    cache_dir: str
    health: str
    """`host:port` of /healthz and /readyz: loopback in the embedded stack, every interface where probes come from outside."""
    listen: str = ""
    """`host:port` of its own server; empty when it has none."""
    http_listen: str = ""
    """`host:port` by which agents reach it; empty when they do not."""
    tls_dir: str = ""
    """Folder of its certificate; empty on loopback, where nothing is encrypted."""


def container_placement(role: Role) -> Placement:
    """The role's placement in a container of its own, on a network where each role answers under its host name."""
    return Placement(
        nats_url="tls://nats:4222",
        buffer_url="rediss://buffer:6379/0",
        objects_url="s3://gradbus",
        grpc={server: f"{ROLES[server].hostname}:{ROLES[server].port}" for server in CALLERS},
        secrets_dir="/run/gradbus",
        cache_dir="/var/cache/gradbus",
        health=f"0.0.0.0:{HEALTH_PORT}",
        listen=f"0.0.0.0:{role.port}" if role.serves else "",
        http_listen=f"0.0.0.0:{AGENTS_PORT}" if role.serves_agents else "",
        tls_dir="/run/gradbus",
    )


def role_environment(role: Role, placement: Placement) -> dict[str, str]:
    """The variables that a process of the role needs at `placement`, and no others."""
    environment = {
        "GRADBUS_SECRETS_DIR": placement.secrets_dir,
        "GRADBUS_HEALTH": placement.health,
        "GRADBUS_CACHE_DIR": placement.cache_dir,
        # gRPC's core prints lines that are no JSON; what they say is in the errors of its calls too.
        "GRPC_VERBOSITY": "NONE",
        # So does torch's C++ code. 3 is FATAL, a word that its collectives do not know; their errors are raised as well.
        "TORCH_CPP_LOG_LEVEL": "3",
    }
    if placement.tls_dir:
        environment["GRADBUS_TLS_DIR"] = placement.tls_dir
    if role.uses_nats:
        environment |= {"GRADBUS_NATS_URL": placement.nats_url, "GRADBUS_NATS_USER": role.name}
    if role.uses_buffer:
        environment |= {"GRADBUS_BUFFER_URL": placement.buffer_url, "GRADBUS_BUFFER_USER": role.name}
    if role.stores_objects:
        environment["GRADBUS_OBJECTS_URL"] = placement.objects_url
    environment |= {address_variable(server): placement.grpc[server] for server in role.calls}
    if role.serves:
        environment["GRADBUS_LISTEN"] = placement.listen
    if role.serves_agents:
        environment["GRADBUS_HTTP_LISTEN"] = placement.http_listen
    if role.serves == "rest" or role.serves_agents:
        environment["GRADBUS_API_KEYS_FILE"] = f"{placement.secrets_dir}/api-keys.json"
    return environment
