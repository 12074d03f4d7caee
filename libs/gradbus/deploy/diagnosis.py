"""Why pods of a deployment do not run, and what to do: read from what Kubernetes says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gradbus.errors import SettingsError

Object = dict[str, Any]

_NO_IMAGE: Final = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}
_WRONG_SETTING: Final = 78
"""Exit status of a service with a wrong setting (sysexits.h: EX_CONFIG)."""
_UNSCHEDULABLE: Final = (
    ("nvidia.com/gpu", "no node has a free GPU: add GPU nodes and NVIDIA's device plugin, or leave the component gpu out"),
    ("unbound immediate PersistentVolumeClaims", "its volume is missing: see the claims in this list"),
    ("node(s) didn't match", "no node has the labels that it asks for: add spot nodes, or nodes enough for servers that stay apart"),
    ("Insufficient", "no node has enough room: add nodes, or apply the component dev, which asks for less"),
)
_VOLUME: Final = ("storage directory is not a directory", "Permission denied", "permission denied")
"""What NATS, the buffer and SeaweedFS say of a volume that belongs to another user."""


def diagnose(text: str) -> list[str]:
    """A line for each trouble, from the JSON list of `kubectl get pods,persistentvolumeclaims,events -o json`; none if all is well.

    Raises SettingsError when the text is no such list.
    """
    try:
        items: list[Object] = json.loads(text)["items"]
    except (ValueError, KeyError, TypeError):
        raise SettingsError(
            "no JSON list came in; give the output of `kubectl -n gradbus get pods,persistentvolumeclaims,events -o json`"
        ) from None
    pods = [item["metadata"]["name"] for item in items if item["kind"] == "Pod"]
    return list(dict.fromkeys(line for item in items for line in _of(item, pods)))


def _of(item: Object, pods: Sequence[str]) -> Iterator[str]:
    if item["kind"] == "Pod":
        yield from _of_pod(item)
    elif item["kind"] == "PersistentVolumeClaim":
        yield from _of_claim(item)
    elif item["kind"] == "Event" and item.get("reason") == "FailedCreate":
        yield from _of_refusal(item["involvedObject"], item["message"].strip(), pods)


def _of_claim(claim: Object) -> Iterator[str]:
    if claim["status"].get("phase") == "Pending" and not claim["spec"].get("storageClassName"):
        yield (
            f"claim {claim['metadata']['name']}: the cluster has no default storage class; mark one with the annotation "
            "storageclass.kubernetes.io/is-default-class=true, delete the claim and its pod, and apply again"
        )


def _of_refusal(owner: Object, said: str, pods: Sequence[str]) -> Iterator[str]:
    """A pod that was refused is in no list of pods: only the event of its owner names it. Events outlive refusals that are over."""
    own = [name for name in pods if name.startswith(f"{owner['name']}-")]
    made = own if owner["kind"] == "ReplicaSet" else [name for name in own if name in said]
    if not made:
        yield f"{owner['kind']} {owner['name']}: a pod was refused: {said}"


def _of_pod(pod: Object) -> Iterator[str]:
    name, status = pod["metadata"]["name"], pod["status"]
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            said = condition.get("message", "")
            advice = next((advice for sign, advice in _UNSCHEDULABLE if sign in said), "see what the scheduler says")
            yield f"pod {name}: {advice} ({said.strip()})"
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        yield from (f"pod {name}, container {container['name']}: {line}" for line in _of_container(container))


def _of_container(container: Object) -> Iterator[str]:
    waiting = container.get("state", {}).get("waiting", {})
    if waiting.get("reason") in _NO_IMAGE:
        yield f"the image {container['image']} cannot be had ({waiting['reason']}); push it, and name your registry under `images`"
    elif waiting.get("reason") == "CreateContainerConfigError":
        yield f"{waiting.get('message', '')}; apply the secrets, which `python -m gradbus.deploy kubernetes` prints"
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    if ended and not container.get("ready"):
        yield from _of_end(ended)


def _of_end(ended: Object) -> Iterator[str]:
    words = ended.get("message", "").strip().splitlines()[-1:] or [""]
    if ended.get("reason") == "OOMKilled":
        yield "it was killed at its memory limit; raise resources.limits.memory, or submit smaller runs"
    elif ended.get("exitCode") == _WRONG_SETTING:
        yield f"a setting is wrong: {words[0]}"
    elif any(sign in ended.get("message", "") for sign in _VOLUME):
        yield f"it may not write its volume ({words[0]}); the storage class must take fsGroup: choose another"
    elif ended.get("exitCode"):
        yield f"it ended with status {ended['exitCode']}: {words[0]}"
