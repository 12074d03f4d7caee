"""All manifests, by their paths below deploy/kubernetes."""

from __future__ import annotations

from typing import Final

from gradbus.deploy.kubernetes import namespace_object
from gradbus.deploy.roles import ROLES, container_placement, role_environment
from manifests.chart import chart
from manifests.documents import NOTE, Object, identity, named, patched, text
from manifests.network import policies
from manifests.overlays import overlays
from manifests.servers import buffer, nats
from manifests.services import OBJECTS, SETTINGS, WORKLOADS, service_objects

NAMESPACE: Final = "gradbus"
PRIORITIES: Final = {
    "gradbus-servers": (1_000_003, "NATS and the buffer: the state of every run"),
    "gradbus-control": (1_000_002, "Services without which no run goes on"),
    "gradbus-trainer": (1_000_001, "Trainers and reference services: a preempted one goes on from its checkpoint"),
    "gradbus-rollout": (1_000_000, "Rollout workers: a preempted one costs the samples in progress"),
}


def base() -> dict[str, list[Object]]:
    """The objects of the base, by file."""
    files = {
        "namespace": [namespace_object(NAMESPACE)],
        "priorities": [_priority(name, *values) for name, values in PRIORITIES.items()],
        "settings": _settings(),
        "network": policies(),
        "nats": nats(),
        "buffer": buffer(),
    }
    return files | {ROLES[one.role].hostname: service_objects(one) for one in WORKLOADS}


def effective(overlay: str = "") -> list[Object]:
    """All objects of an overlay, or of the base, as `kustomize build` makes them, without the namespace that it adds."""
    objects = [one for objects in base().values() for one in objects]
    if not overlay:
        return objects
    chosen = overlays()[overlay]
    return patched([*objects, *chosen.adds], chosen.patches)


def written() -> dict[str, str]:
    """Path to content."""
    files = {f"base/{name}.yaml": NOTE + text(objects) for name, objects in base().items()}
    files["base/kustomization.yaml"] = _kustomization(namespace=NAMESPACE, resources=[f"{name}.yaml" for name in base()])
    for name, overlay in overlays().items():
        folder = f"components/{name}"
        if overlay.adds:
            files[f"{folder}/objects.yaml"] = NOTE + text(overlay.adds)
        files |= {f"{folder}/{_file(one)}": NOTE + text([one]) for one in overlay.patches}
        resources = {"resources": ["objects.yaml"]} if overlay.adds else {}
        patches = {"patches": [{"path": _file(one)} for one in overlay.patches]} if overlay.patches else {}
        files[f"{folder}/kustomization.yaml"] = _kustomization("Component", f"# {overlay.about}\n", **resources, **patches)
        more = {"namespace": NAMESPACE, "resources": ["../../base"], "components": [f"../../components/{name}"]}
        files[f"overlays/{name}/kustomization.yaml"] = _kustomization(comment=f"# {overlay.about}\n", **more)
    return files | chart({"base": effective(), **{name: effective(name) for name in overlays()}})


def _file(one: Object) -> str:
    return "-".join(identity(one)).lower() + ".yaml"


def _kustomization(kind: str = "Kustomization", comment: str = "", **content: object) -> str:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    return NOTE + comment + text([{"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **content}])


def _priority(name: str, value: int, about: str) -> Object:
    return named("scheduling.k8s.io/v1", "PriorityClass", name, value=value, description=about, globalDefault=False)


def _settings() -> list[Object]:
    role = ROLES["conductor"]
    bucket = role_environment(role, container_placement(role))["GRADBUS_OBJECTS_URL"]
    # Empty: nothing is exported.
    every = {"GRADBUS_LOG_LEVEL": "INFO", "OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_METRIC_EXPORT_INTERVAL": "15000"}
    where = {"GRADBUS_OBJECTS_URL": bucket, "AWS_REGION": "us-east-1"}
    return [named("v1", "ConfigMap", SETTINGS, data=every), named("v1", "ConfigMap", OBJECTS, data=where)]
