"""The services: for each role a Deployment, its budget and account, and a Service if others call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gradbus.deploy.kubernetes import secret_name
from gradbus.deploy.roles import AGENTS_PORT, HEALTH_PORT, ROLES, Role, container_placement, role_environment
from manifests.documents import Object, named, selector
from manifests.pods import (
    DRAIN_SECONDS,
    ENDPOINTS_SECONDS,
    SECRETS,
    Needs,
    container,
    health_probes,
    mount,
    pod_template,
    scratch_volume,
    secret_volume,
    serves_on,
)

VERSION: Final = "0.1.0"
SETTINGS: Final = "gradbus-settings"
OBJECTS: Final = "gradbus-objects"
"""ConfigMaps: what every service reads, and where object storage is."""
CACHE: Final = "/var/cache/gradbus"
_BUCKET: Final = "GRADBUS_OBJECTS_URL"
_REWARDS: Final = {"GRADBUS_REWARD_SERVICE": "", "GRADBUS_ALLOWED_HOSTS": "[]", "GRADBUS_PYTHON_GRADERS": "true"}
_TEACHERS: Final = {"GRADBUS_TEACHER_HOSTS": "[]"}
_AGENTS: Final = {"GRADBUS_ALLOWED_HOSTS": "[]", "GRADBUS_PUBLIC_URL": ""}
_ENVIRONMENTS: Final = {"GRADBUS_ALLOWED_HOSTS": "[]", "GRADBUS_PYTHON_ENVIRONMENTS": "true"}


@dataclass(frozen=True, slots=True)
class Workload:
    """What a role's Deployment has beyond the table of roles."""

    role: str
    replicas: int
    needs: Needs
    priority: str = "gradbus-control"
    options: Mapping[str, str] = field(default_factory=dict)
    """Variables of the role that an operator may want to change."""
    scratch: str = ""
    """Size of its cache folder; empty: it has none."""
    balanced: bool = False
    """Whether one caller's calls are spread over all replicas; otherwise a caller stays with one, which keeps its sessions."""
    strategy: Mapping[str, Any] = field(default_factory=dict)
    pool: str = ""
    """Pool of a role with several Deployments. To policies and budgets they are one component."""

    @property
    def name(self) -> str:
        """Of its Deployment."""
        hostname = ROLES[self.role].hostname
        return f"{hostname}-{self.pool}" if self.pool not in {"", STEADY} else hostname


STEADY: Final = "steady"
"""The pool on nodes that stay."""
_POOL: Final = "gradbus.dev/pool"
_ONE_BY_ONE: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
"""For workers: a new one could find no free GPU before an old one ends."""
_NEVER_TWO: Final = {"type": "Recreate"}
"""For what is in the memory of one process."""
WORKLOADS: Final = (
    # What keeps a blob from being deleted while it is published is in the memory of the process.
    Workload("weight_store", 1, Needs("100m", "256Mi", "1Gi"), strategy=_NEVER_TWO),
    Workload("reward", 2, Needs("250m", "512Mi", "2Gi"), options=_REWARDS, balanced=True),
    Workload("environment", 2, Needs("250m", "512Mi", "2Gi"), options=_ENVIRONMENTS),
    # Agents must reach the process that has their episode.
    Workload("agent", 1, Needs("100m", "256Mi", "1Gi"), options=_AGENTS, strategy=_NEVER_TWO),
    Workload(
        "reference",
        1,
        Needs("500m", "1Gi", "4Gi"),
        priority="gradbus-trainer",
        options=_TEACHERS,
        scratch="20Gi",
        balanced=True,
        strategy=_ONE_BY_ONE,
    ),
    Workload("conductor", 2, Needs("250m", "512Mi", "2Gi"), scratch="50Gi"),
    Workload("trainer", 1, Needs("1", "2Gi", "8Gi"), priority="gradbus-trainer", scratch="50Gi", strategy=_ONE_BY_ONE),
    Workload("rollout", 2, Needs("1", "2Gi", "8Gi"), "gradbus-rollout", scratch="50Gi", strategy=_ONE_BY_ONE, pool=STEADY),
    # Uploads and models from the hub pass through TMPDIR.
    Workload(
        "gateway",
        2,
        Needs("250m", "512Mi", "2Gi"),
        options=_REWARDS | _TEACHERS | {"GRADBUS_SERVED_HOSTS": "[]", "TMPDIR": CACHE},
        scratch="50Gi",
    ),
)


def service_objects(workload: Workload) -> list[Object]:
    """All objects of a role."""
    role = ROLES[workload.role]
    name = role.hostname
    account = named("v1", "ServiceAccount", name, name, automountServiceAccountToken=False)
    return [account, deployment(workload), budget(name), *([_service(role, workload)] if role.serves else [])]


def deployment(workload: Workload) -> Object:
    """The role's Deployment, or that of one of its pools."""
    component = ROLES[workload.role].hostname
    chosen, template = selector(component), _template(ROLES[workload.role], workload)
    if workload.pool:
        for marked in (chosen["matchLabels"], template["metadata"]["labels"]):
            marked[_POOL] = workload.pool
    strategy = {"strategy": dict(workload.strategy)} if workload.strategy else {}
    spec = {"replicas": workload.replicas, "selector": chosen, **strategy, "template": template}
    return named("apps/v1", "Deployment", workload.name, component, spec=spec)


def budget(name: str) -> Object:
    """Nodes are drained one pod of a component at a time. A pod that is not ready serves nobody, and holds no node."""
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector(name)}
    return named("policy/v1", "PodDisruptionBudget", name, name, spec=spec)


def environment(role: Role, options: Mapping[str, str]) -> list[Object]:
    """The role's variables, but for those of the ConfigMaps."""
    own = role_environment(role, container_placement(role))
    own.pop(_BUCKET, None)
    variables: list[Object] = [{"name": name, "value": value} for name, value in {**own, **options}.items()]
    if role.computes:  # so that what does not fit ends its run with an error, before the kernel kills the process without one
        variables.append({"name": "GRADBUS_MEMORY_LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}})
    if role.name in {"trainer", "rollout"}:
        variables.append({"name": "GRADBUS_BROADCAST_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return variables


def _template(role: Role, workload: Workload) -> Object:
    sources = [SETTINGS, *([OBJECTS] if role.stores_objects else [])]
    mounts = [mount("secrets", SECRETS, readOnly=True), mount("tmp", "/tmp")]  # noqa: S108 - a volume of the pod alone
    volumes = [secret_volume("secrets", secret_name(role.name)), scratch_volume("tmp", "256Mi")]
    if workload.scratch:
        mounts.append(mount("cache", CACHE))
        volumes.append(scratch_volume("cache", workload.scratch))
    service = container(
        role.hostname,
        f"gradbus/{role.hostname}:{VERSION}",
        workload.needs,
        command=["python", "-m", role.module],
        envFrom=[{"configMapRef": {"name": source}} for source in sources],
        env=environment(role, workload.options),
        ports=_ports(role),
        **health_probes(),
        **(serves_on() if role.serves else {}),
        volumeMounts=mounts,
    )
    grace = DRAIN_SECONDS + (ENDPOINTS_SECONDS if role.serves else 0)
    return pod_template(role.hostname, [service], volumes, workload.priority, terminationGracePeriodSeconds=grace)


def _ports(role: Role) -> list[Object]:
    served = {role.serves: role.port} if role.serves else {}
    agents = {"agents": AGENTS_PORT} if role.serves_agents else {}
    return [{"name": name, "containerPort": port} for name, port in {**served, **agents, "health": HEALTH_PORT}.items()]


def _service(role: Role, workload: Workload) -> Object:
    served = [one for one in _ports(role) if one["name"] != "health"]
    ports = [{"name": one["name"], "port": one["containerPort"], "targetPort": one["name"]} for one in served]
    spec = {**({"clusterIP": "None"} if workload.balanced else {}), "selector": selector(role.hostname)["matchLabels"], "ports": ports}
    return named("v1", "Service", role.hostname, role.hostname, spec=spec)
