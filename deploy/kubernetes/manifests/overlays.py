"""The overlays: what each adds to the base, and the patches that make it differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from gradbus.deploy.kubernetes import NATS_SERVERS
from gradbus.deploy.roles import ROLES
from manifests.documents import Object, named, patch, selector
from manifests.network import inside_storage, peers_policy
from manifests.pods import NODE_LOST, SECRETS, Needs, mount
from manifests.ranks import RANKS, queued_ranks, stateful_ranks
from manifests.servers import S3_PORT, objects
from manifests.services import OBJECTS, SETTINGS, VERSION, WORKLOADS, Workload, deployment

SPOT_LABELS: Final = {
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""How clouds mark their spot nodes."""
_SPOT_TAINTS: Final = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "karpenter.sh/capacity-type")
NOTICE_SECONDS: Final = 25
"""A drain of 20 s and 5 s for threads end within the shortest notice of a cloud, 30 s."""
_GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Overlay:
    """One overlay."""

    about: str
    adds: tuple[Object, ...] = ()
    patches: tuple[Object, ...] = field(default_factory=tuple)


def overlays() -> dict[str, Overlay]:
    """By the name of the folder."""
    return {
        "dev": dev(),
        "gpu": gpu(),
        "spot": spot(),
        "ha": ha(),
        "ranks": ranks(),
        "kueue": kueue(),
        "keda": keda(),
        "gvisor": gvisor(),
    }


def dev() -> Overlay:
    """A small cluster without object storage."""
    storage_policy, own_policy = inside_storage()
    where = {"AWS_ENDPOINT_URL": f"http://objects:{S3_PORT}", "AWS_ALLOW_HTTP": "true"}
    patches = [
        patch("ConfigMap", OBJECTS, where),
        patch("NetworkPolicy", "object-storage", {"egress": storage_policy["spec"]["egress"]}),
        *(_container(_workload(role), {"resources": _small(_workload(role)).resources}) for role in ROLES),
    ]
    for one in patches:
        if one["metadata"]["name"] in {"reward", "environment", "rollout"}:
            one["spec"]["replicas"] = 1
    about = "A small cluster without object storage: SeaweedFS with one disk, small requests. Everything is lost with that disk."
    return Overlay(about, (*objects(), own_policy), tuple(patches))


def _small(workload: Workload) -> Needs:
    if ROLES[workload.role].computes:
        return Needs("100m", "512Mi", "4Gi")
    return Needs("25m", "128Mi", workload.needs.most_memory)


def gpu() -> Overlay:
    """A GPU for each trainer and rollout worker, and for the reference service."""
    shared: Object = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    patches = []
    for role, image, needs in (
        ("trainer", "gradbus/trainer-deepspeed", Needs("8", "64Gi", "128Gi", gpus=1)),
        ("rollout", "gradbus/rollout-sglang", Needs("8", "64Gi", "128Gi", gpus=1)),
        ("reference", "gradbus/reference-gpu", Needs("4", "16Gi", "64Gi", gpus=1)),
    ):
        # The driver reserves more address space than it uses, so allocations have no limit there.
        variables: list[Object] = [{"name": "GRADBUS_MEMORY_LIMIT", "$patch": "delete"}, {"name": "GRADBUS_DEVICE", "value": "cuda"}]
        if role != "reference":
            variables.append({"name": "GRADBUS_BROADCAST_BACKEND", "value": "nccl"})
        changes: Object = {"image": f"{image}:{VERSION}", "resources": needs.resources, "env": variables}
        changes["volumeMounts"] = [mount("shm", "/dev/shm")]  # noqa: S108 - memory that ranks and servers share
        if role == "rollout":  # SGLang's image has a Python of its own
            changes["command"] = ["/opt/gradbus/bin/python", "-m", ROLES[role].module]
        patches.append(_container(_workload(role), changes, tolerations=[*NODE_LOST, _GPU_TOLERATION], volumes=[shared]))
    return Overlay("A GPU for each trainer, rollout worker and reference service. Not tried on a GPU.", (), tuple(patches))


def spot() -> Overlay:
    """A second pool of rollout workers, on nodes that may be taken away with 30 s notice."""
    pool = deployment(replace(_workload("rollout"), replicas=4, pool="spot"))
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in SPOT_LABELS.items()]
    pod = pool["spec"]["template"]["spec"]
    pod["affinity"]["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["tolerations"] = [*NODE_LOST, *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in _SPOT_TAINTS)]
    pod["terminationGracePeriodSeconds"] = NOTICE_SECONDS
    return Overlay("Rollout workers on spot nodes, beside those on nodes that stay.", (pool,))


def ha() -> Overlay:
    """NATS of three servers, each on a node of its own, and more replicas."""
    apart = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector("nats")}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    server = {"name": "nats", "command": ["nats-server", "--config", f"{SECRETS}/cluster.conf"]}
    pod = {"affinity": affinity, "containers": [server]}
    patches = [
        patch("StatefulSet", "nats", {"replicas": NATS_SERVERS, "template": {"spec": pod}}),
        patch("ConfigMap", SETTINGS, {"GRADBUS_NATS_REPLICAS": str(NATS_SERVERS)}),
        *(patch("Deployment", name, {"replicas": 3}) for name in ("conductor", "gateway", "reward")),
    ]
    about = "NATS of three servers on three nodes, and more replicas. Start a new deployment with it."
    return Overlay(about, (peers_policy(),), tuple(patches))


def ranks() -> Overlay:
    """A trainer of several pods in place of a trainer of one."""
    return Overlay("A trainer of two ranks, one in each pod, in place of a trainer of one.", tuple(stateful_ranks()), (_NO_TRAINER,))


def kueue() -> Overlay:
    """The same as a JobSet in a queue."""
    about = "A trainer of two ranks as a JobSet that Kueue admits whole. The server accepts it; no controller of them has run it."
    # A Job tells nobody how many pods it wants, so that of its pods no number that may be away can be computed: none could be evicted.
    one_at_a_time = patch("PodDisruptionBudget", "trainer", {"maxUnavailable": None, "minAvailable": RANKS - 1})
    return Overlay(about, tuple(queued_ranks()), (_NO_TRAINER, one_at_a_time))


_NO_TRAINER: Final = patch("Deployment", "trainer", {"replicas": 0})


def gvisor() -> Overlay:
    """What executes users' code in gVisor. A runtime class of another name is patched in."""
    told = {"name": "GRADBUS_IN_GVISOR", "value": "true"}
    patches = [
        _container(_workload("environment"), {"env": [told]}, runtimeClassName="gvisor"),
        _container(_workload("reward"), {}, runtimeClassName="gvisor"),
    ]
    about = "Users' environments and graders in pods of the RuntimeClass gvisor. Not tried with gVisor."
    return Overlay(about, (), tuple(patches))


def keda() -> Overlay:
    """Rollout workers by the number of groups that wait for their samples."""
    asks = {"serverAddress": PROMETHEUS, "query": WAITING, "threshold": str(GROUPS_PER_WORKER)}
    spec = {
        "scaleTargetRef": {"name": "rollout"},
        "minReplicaCount": 1,
        "maxReplicaCount": 20,
        "cooldownPeriod": 300,
        "triggers": [{"type": "prometheus", "metadata": asks}],
    }
    about = "Rollout workers by the groups that wait for samples. The server accepts it; no controller of KEDA has run it."
    return Overlay(about, (named("keda.sh/v1alpha1", "ScaledObject", "rollout", "rollout", spec=spec),))


PROMETHEUS: Final = "http://prometheus.monitoring:9090"
WAITING: Final = 'sum(gradbus_groups_waiting{gradbus_stage="sampling"}) or vector(0)'
GROUPS_PER_WORKER: Final = 32
"""As many as a task names at most."""


def _workload(role: str) -> Workload:
    return next(one for one in WORKLOADS if one.role == role)


def _container(workload: Workload, changes: Object, **pod: Any) -> Object:
    """A patch of the one container of a Deployment."""
    name = ROLES[workload.role].hostname
    return patch("Deployment", name, {"template": {"spec": {**pod, "containers": [{"name": name, **changes}]}}})
