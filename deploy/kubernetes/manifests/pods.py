"""What every pod has: no privileges, no token of the cluster's API, probes, and time to finish its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gradbus.deploy.roles import HEALTH_PORT
from manifests.documents import Object, labels, selector

USER: Final = 10001
"""User and group of every process, as in the images."""
SECRETS: Final = "/run/gradbus"
ENDPOINTS_SECONDS: Final = 5
"""Time in which a server still answers after its pod began to end, so that nobody is sent to it any more."""
NODE_LOST: Final[list[Object]] = [
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for state in ("not-ready", "unreachable")
]
"""A pod of a lost node is replaced after 30 s, and not after the usual 300: processes recover, so a mistake costs little."""
DRAIN_SECONDS: Final = 30
"""A service drains for at most 20 s and gives its threads 5 s more."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Requests of one container, and the memory at which it is killed.

    There is no limit of processor time: a process that is throttled for seconds misses its heartbeats, and loses its leases and claims.
    """

    cpu: str
    memory: str
    most_memory: str
    gpus: int = 0

    @property
    def resources(self) -> Object:
        """The field `resources`."""
        devices = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        return {"requests": {"cpu": self.cpu, "memory": self.memory, **devices}, "limits": {"memory": self.most_memory, **devices}}


def container(name: str, image: str, needs: Needs, **content: Any) -> Object:
    """A container without any privilege, whose root is read only. The last lines of one that failed are in the pod's status."""
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    first = {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "terminationMessagePolicy": "FallbackToLogsOnError"}
    return {**first, **content, "resources": needs.resources, "securityContext": confined}


def health_probes(port: int = HEALTH_PORT, live: str = "/healthz", ready: str = "/readyz") -> Object:
    """HTTP probes of the health pages. gRPC's own probes cannot show a certificate, which our servers ask for."""
    return {
        "startupProbe": {**_asks(live, port), "periodSeconds": 2, "failureThreshold": 90, "timeoutSeconds": 5},
        "livenessProbe": {**_asks(live, port), "periodSeconds": 10, "failureThreshold": 9, "timeoutSeconds": 10},
        "readinessProbe": {**_asks(ready, port), "periodSeconds": 3, "failureThreshold": 2, "timeoutSeconds": 5},
    }


def _asks(path: str, port: int) -> Object:
    return {"httpGet": {"path": path, "port": port}}


def serves_on() -> Object:
    """A server ends only after Services have left it out; native `sleep` hooks would need Kubernetes 1.30."""
    return {"lifecycle": {"preStop": {"exec": {"command": ["sleep", str(ENDPOINTS_SECONDS)]}}}}


def pod_template(component: str, containers: list[Object], volumes: list[Object], priority: str, **more: Any) -> Object:
    """A pod's template. `more` are further fields of its spec."""
    spec = {
        "serviceAccountName": component,
        "automountServiceAccountToken": False,
        # Variables like NATS_PORT of each Service would be read as settings by other programs.
        "enableServiceLinks": False,
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": DRAIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Not a constraint for zones as well: the scheduler ignores all constraints of a pod on a node that lacks the label of one.
        "topologySpreadConstraints": [_spread(component, "kubernetes.io/hostname")],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_other_zone(component)]}},
        "tolerations": NODE_LOST,
        **more,
        "containers": containers,
        "volumes": volumes,
    }
    return {"metadata": {"labels": labels(component)}, "spec": spec}


def _spread(component: str, key: str) -> Object:
    return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector(component)}


def _other_zone(component: str) -> Object:
    return {"weight": 100, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector(component)}}


def secret_volume(name: str, secret: str) -> Object:
    """The files of a Secret, which the pod's group may read."""
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}


def scratch_volume(name: str, size: str) -> Object:
    """A folder that ends with the pod."""
    return {"name": name, "emptyDir": {"sizeLimit": size}}


def mount(name: str, path: str, **more: Any) -> Object:
    """A volume in a container."""
    return {"name": name, "mountPath": path, **more}
