"""A trainer of several ranks, one in each pod: a StatefulSet, or a JobSet that Kueue admits whole."""

from __future__ import annotations

from typing import Any, Final

from gradbus.deploy.roles import HEALTH_PORT, ROLES
from gradbus.spec import DEFAULT_QUEUE
from manifests.documents import Object, labels, named, selector
from manifests.services import VERSION, WORKLOADS, deployment

NAME: Final = "trainer-ranks"
RANKS: Final = 2
MASTER_PORT: Final = 29500
QUEUE: Final = DEFAULT_QUEUE
"""Of Kueue, which admits the trainer, and of the gateway, whose runs it then trains."""
_KUEUE: Final = "kueue.x-k8s.io/v1beta2"
_FOREVER: Final = 2**31 - 1


def stateful_ranks() -> list[Object]:
    """Each pod is a rank by its number. When one is lost the others end, and all meet again when they have restarted."""
    template = _template("${POD_NAME##*-}", f"{NAME}-0.{NAME}")
    spec = {
        "serviceName": NAME,
        "replicas": RANKS,
        # All at once: a rank waits for the others before it is ready.
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": template["metadata"]["labels"]},
        "template": template,
    }
    peers = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": template["metadata"]["labels"],
        "ports": [{"name": "ranks", "port": MASTER_PORT}],
    }
    service = named("v1", "Service", NAME, "trainer", spec=peers)
    return [service, named("apps/v1", "StatefulSet", NAME, "trainer", spec=spec), _policy()]


def queued_ranks() -> list[Object]:
    """The same ranks as a JobSet, with a queue of one team: it starts when there is room for all, and may be preempted whole."""
    job = "ranks"
    template = _template("$JOB_COMPLETION_INDEX", f"{NAME}-{job}-0-0.{NAME}")
    template["spec"]["restartPolicy"] = "OnFailure"
    template["spec"]["containers"][0]["env"].append({"name": "GRADBUS_QUEUE", "value": QUEUE})
    work = {"parallelism": RANKS, "completions": RANKS, "completionMode": "Indexed", "backoffLimit": _FOREVER, "template": template}
    spec = {
        "suspend": True,
        "network": {"enableDNSHostnames": True, "subdomain": NAME, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": _FOREVER},
        "replicatedJobs": [{"name": job, "replicas": 1, "template": {"spec": work}}],
    }
    jobset = named("jobset.x-k8s.io/v1alpha2", "JobSet", NAME, "trainer", spec=spec)
    jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = QUEUE
    quota = [{"name": name, "nominalQuota": amount} for name, amount in (("cpu", "64"), ("memory", "512Gi"))]
    group = {"coveredResources": [one["name"] for one in quota], "flavors": [{"name": "gradbus", "resources": quota}]}
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    cluster_queue = {"namespaceSelector": {}, "preemption": preemption, "resourceGroups": [group]}
    return [
        named(_KUEUE, "ResourceFlavor", "gradbus", spec={}),
        named(_KUEUE, "ClusterQueue", "gradbus", spec=cluster_queue),
        named(_KUEUE, "LocalQueue", QUEUE, spec={"clusterQueue": "gradbus"}),
        jobset,
        _policy(),
    ]


def _template(rank: str, master: str) -> Object:
    """A trainer's pod as one rank; `rank` is what a shell makes its number of."""
    (workload,) = (one for one in WORKLOADS if one.role == "trainer")
    template: Object = deployment(workload)["spec"]["template"]
    template["metadata"]["labels"] = labels("trainer") | {"gradbus.dev/pool": "ranks"}
    (container,) = template["spec"]["containers"]
    meet = {"WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "MASTER_ADDR": master, "MASTER_PORT": str(MASTER_PORT)}
    container["image"] = f"gradbus/trainer-deepspeed:{VERSION}"
    container["command"] = ["sh", "-c", f"RANK={rank} exec python -m {ROLES['trainer'].module}"]
    container["env"] += [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    container["env"] += [{"name": key, "value": value} for key, value in meet.items()]
    # Only rank 0 has health pages; the others end when they miss it.
    asks = f"[ {rank} != 0 ] || exec python -IS /opt/ready.py {HEALTH_PORT}"
    for probe in ("startupProbe", "livenessProbe"):
        del container[probe]
    container["readinessProbe"] = {"exec": {"command": ["sh", "-c", asks]}, "periodSeconds": 10, "timeoutSeconds": 10}
    return template


def _policy() -> Object:
    """Ranks connect to each other, on ports that gloo and NCCL choose."""
    trainers: list[Any] = [{"podSelector": selector("trainer")}]
    rules = {"policyTypes": ["Ingress", "Egress"], "ingress": [{"from": trainers}], "egress": [{"to": trainers}]}
    return named("networking.k8s.io/v1", "NetworkPolicy", NAME, spec={"podSelector": selector("trainer"), **rules})
