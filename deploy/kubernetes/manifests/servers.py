"""The servers: NATS and the buffer, each a StatefulSet with a volume, and for a cluster without object storage SeaweedFS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gradbus.deploy.kubernetes import NATS_MONITOR_PORT, NATS_PEERS, NATS_ROUTES_PORT, secret_name
from gradbus.deploy.roles import ROLES, container_placement, role_environment
from manifests.documents import Object, named, selector
from manifests.pods import SECRETS, Needs, container, health_probes, mount, pod_template, scratch_volume, secret_volume
from manifests.services import OBJECTS, SETTINGS, VERSION, budget

NATS_PORT: Final = 4222
BUFFER_PORT: Final = 6379
S3_PORT: Final = 8333
STATE: Final = "/var/lib/gradbus"
_SUPERVISOR: Final = "/run/gradbus-supervisor"
_LOADED: Final = "/tmp/done"  # noqa: S108 - a file of the container alone
_PING: Final = (
    f"REDISCLI_AUTH=$(cat {SECRETS}/password) valkey-cli --tls --cacert {SECRETS}/ca.crt --cert {SECRETS}/tls.crt"
    f" --key {SECRETS}/tls.key -h buffer --user supervisor ping | grep -q PONG"
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server with a volume."""

    name: str
    ports: Mapping[str, int]
    volume: str
    """Size of its volume."""
    containers: tuple[Object, ...]
    volumes: tuple[Object, ...] = ()
    pod: Mapping[str, object] = field(default_factory=dict)
    """More fields of the pod."""


def server_objects(server: Server) -> list[Object]:
    """All objects of a server."""
    name = server.name
    volumes = [secret_volume("secrets", secret_name(name)), scratch_volume("tmp", "256Mi"), *server.volumes]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": server.volume}}}
    pod = {"terminationGracePeriodSeconds": 60, **server.pod}
    template = pod_template(name, list(server.containers), volumes, "gradbus-servers", **pod)
    spec = {
        "serviceName": NATS_PEERS if name == "nats" else name,
        "replicas": 1,
        "podManagementPolicy": "Parallel",
        "selector": selector(name),
        "template": template,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    ports = [{"name": key, "port": port, "targetPort": key} for key, port in server.ports.items()]
    service = named("v1", "Service", name, name, spec={"selector": selector(name)["matchLabels"], "ports": ports})
    account = named("v1", "ServiceAccount", name, name, automountServiceAccountToken=False)
    return [account, named("apps/v1", "StatefulSet", name, name, spec=spec), budget(name), service]


def nats() -> list[Object]:
    """NATS, and the names by which several servers of it find each other."""
    server = container(
        "nats",
        "nats:2.15.1-alpine",
        Needs("250m", "256Mi", "1Gi"),
        command=["nats-server", "--config", f"{SECRETS}/nats.conf"],
        env=[
            {"name": "GOGC", "value": "25"},
            {"name": "GOMEMLIMIT", "value": "900MiB"},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        ports=_container_ports({"nats": NATS_PORT, "routes": NATS_ROUTES_PORT, "monitor": NATS_MONITOR_PORT}),
        # With JetStream's streams in the answer, a server that lost its quorum would be killed, which brings no quorum back.
        **health_probes(NATS_MONITOR_PORT, live="/healthz?js-enabled-only=true", ready="/healthz?js-server-only=true"),
        volumeMounts=_mounts(STATE),
    )
    objects = server_objects(Server("nats", {"nats": NATS_PORT}, "20Gi", (server,)))
    peers = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector("nats")["matchLabels"],
        "ports": [{"name": "routes", "port": NATS_ROUTES_PORT, "targetPort": "routes"}],
    }
    return [*objects, named("v1", "Service", NATS_PEERS, "nats", spec=peers)]


def buffer() -> list[Object]:
    """The buffer. Beside the server a container loads the functions, so that a server with a new volume has them too."""
    asks = {"exec": {"command": ["sh", "-c", _PING]}, "timeoutSeconds": 10}
    server = container(
        "buffer",
        "valkey/valkey:9.1.2-alpine",
        # Twice the buffer's own limit, because rewriting its log may need as much again.
        Needs("250m", "512Mi", "4Gi"),
        command=["valkey-server", f"{SECRETS}/buffer.conf"],
        ports=_container_ports({"buffer": BUFFER_PORT}),
        startupProbe={**asks, "periodSeconds": 3, "failureThreshold": 200},
        livenessProbe={"tcpSocket": {"port": BUFFER_PORT}, "periodSeconds": 10, "failureThreshold": 9, "timeoutSeconds": 10},
        readinessProbe={**asks, "periodSeconds": 10, "failureThreshold": 3},
        volumeMounts=_mounts(STATE),
    )
    own = role_environment(ROLES["conductor"], container_placement(ROLES["conductor"]))
    variables = {"GRADBUS_SECRETS_DIR": _SUPERVISOR, "GRADBUS_TLS_DIR": _SUPERVISOR, "GRADBUS_BUFFER_USER": "supervisor"}
    variables |= {"GRADBUS_BUFFER_URL": own["GRADBUS_BUFFER_URL"]}
    volumes = (secret_volume("supervisor", secret_name("supervisor")), scratch_volume("done", "1Mi"))
    # The server's name leads to the pod itself, for the Service names it only once the functions are there.
    itself = {"hostAliases": [{"ip": "127.0.0.1", "hostnames": ["buffer"]}]}
    return server_objects(Server("buffer", {"buffer": BUFFER_PORT}, "20Gi", (server, _job("functions", variables)), volumes, itself))


def objects() -> list[Object]:
    """SeaweedFS's S3, one server with one disk: for trying things out."""
    # Its S3 server requires a key; the servers behind it require none, so they listen on loopback.
    options = ["-dir=/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0", "-volume.max=0"]
    options += ["-master.volumeSizeLimitMB=1024", "-master.telemetry=false", "-volume.preStopSeconds=0"]
    options += ["-s3", f"-s3.port={S3_PORT}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    server = container(
        "objects",
        "chrislusf/seaweedfs:4.48",
        Needs("250m", "512Mi", "2Gi"),
        command=["weed", "-logtostderr=true", "server", *options, f"-s3.config={SECRETS}/s3.json"],
        env=[{"name": "GOMEMLIMIT", "value": "1600MiB"}],
        ports=_container_ports({"s3": S3_PORT}),
        **health_probes(S3_PORT, live="/healthz", ready="/healthz"),
        volumeMounts=_mounts("/data"),
    )
    variables = {"GRADBUS_SECRETS_DIR": _SUPERVISOR, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{S3_PORT}"}
    volumes = (secret_volume("supervisor", secret_name("supervisor")), scratch_volume("done", "1Mi"))
    return server_objects(Server("objects", {"s3": S3_PORT}, "20Gi", (server, _job("bucket", variables, OBJECTS)), volumes))


def _job(name: str, variables: Mapping[str, str], *sources: str) -> Object:
    """A container that does an init job until it has succeeded once, and then waits; ready from then on."""
    program = f"until python -m gradbus.deploy {name}; do sleep 1; done; touch {_LOADED}; exec sleep infinity"
    return container(
        name,
        f"gradbus/conductor:{VERSION}",
        Needs("10m", "64Mi", "256Mi"),
        command=["sh", "-c", program],
        envFrom=[{"configMapRef": {"name": source}} for source in (SETTINGS, *sources)],
        env=[{"name": key, "value": value} for key, value in variables.items()],
        readinessProbe={"exec": {"command": ["test", "-f", _LOADED]}, "periodSeconds": 2},
        volumeMounts=[mount("supervisor", _SUPERVISOR, readOnly=True), mount("done", "/tmp")],  # noqa: S108
    )


def _mounts(state: str) -> list[Object]:
    return [mount("secrets", SECRETS, readOnly=True), mount("tmp", "/tmp"), mount("data", state)]  # noqa: S108


def _container_ports(ports: Mapping[str, int]) -> list[Object]:
    return [{"name": name, "containerPort": port} for name, port in ports.items()]
