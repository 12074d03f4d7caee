"""Objects of Kubernetes as dictionaries: their form, their text, and the merge of a patch into an object as kustomize does it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

Object = dict[str, Any]

NOTE: Final = "# Rendered from libs/gradbus/deploy/roles.py by deploy/kubernetes/build.py.\n"
_KEYS: Final = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "port"}
"""Lists that a strategic merge joins by a key; it replaces all others."""


class _Plain(yaml.SafeDumper):
    """Writes every value in full: an alias would be hard to read."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


def text(objects: Iterable[Object]) -> str:
    """YAML of several documents."""
    return "---\n".join(yaml.dump(one, Dumper=_Plain, sort_keys=False, width=140) for one in objects)


def labels(component: str) -> dict[str, str]:
    """The labels by which selectors find the pods of a component."""
    return {"app.kubernetes.io/name": "gradbus", "app.kubernetes.io/component": component}


def selector(*components: str) -> Object:
    """Selects the pods of the components."""
    if len(components) == 1:
        return {"matchLabels": labels(components[0])}
    among = {"key": "app.kubernetes.io/component", "operator": "In", "values": list(components)}
    return {"matchLabels": {"app.kubernetes.io/name": "gradbus"}, "matchExpressions": [among]}


def named(api: str, kind: str, name: str, component: str = "", **content: Any) -> Object:
    """An object with its labels."""
    marked = labels(component) if component else {"app.kubernetes.io/name": "gradbus"}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": marked}, **content}


def patch(kind: str, name: str, spec: Object) -> Object:
    """A strategic merge patch of the `spec` of a workload, a policy or a budget."""
    api = {"NetworkPolicy": "networking.k8s.io/v1", "PodDisruptionBudget": "policy/v1", "ConfigMap": "v1"}.get(kind, "apps/v1")
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **({"data": spec} if kind == "ConfigMap" else {"spec": spec})}


def identity(one: Object) -> tuple[str, str]:
    """Kind and name."""
    return one["kind"], one["metadata"]["name"]


def patched(objects: Iterable[Object], patches: Iterable[Object]) -> list[Object]:
    """The objects after all patches. Raises KeyError for a patch of an object that is not there."""
    found = {identity(one): one for one in objects}
    for change in patches:
        found[identity(change)] = merged(found[identity(change)], change)
    return list(found.values())


def merged(value: Any, change: Any, name: str = "") -> Any:
    """A copy of `value` after a strategic merge. None removes a field."""
    if isinstance(value, Mapping) and isinstance(change, Mapping):
        result = {key: copy.deepcopy(inner) for key, inner in value.items() if not (key in change and change[key] is None)}
        for key, inner in change.items():
            if inner is not None:
                result[key] = merged(value.get(key), inner, key)
        return result
    if isinstance(value, list) and isinstance(change, list) and name in _KEYS:
        return _joined(value, change, name)
    return copy.deepcopy(change)


def _joined(value: list[Object], change: list[Object], name: str) -> list[Object]:
    key = "containerPort" if name == "ports" and any("containerPort" in one for one in value) else _KEYS[name]
    changes = {one[key]: one for one in change}
    kept = [merged(one, changes.pop(one[key], {})) for one in value]
    return [one for one in kept if one.get("$patch") != "delete"] + list(changes.values())
