"""Why pods of a deployment do not run, and what to do: read from what Kubernetes says of them.

A cause is named only where the cluster's words leave no other; else the words are quoted, with their time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gradbus.deploy.cluster_objects import COMMAND, Claim, Container, Ended, Event, Job, Pod, PodSet, read_objects


class _Rule(NamedTuple):
    """What to do if the cluster's words have `sign` and nothing of `other`, both regular expressions."""

    sign: str
    other: str
    advice: str


_NEVER: Final = r"(?!)"
_OTHER_NODES: Final = r"Insufficient|taint(?! \{node-role)|unschedulable|volume"
"""The scheduler gives one reason for each node: these say that it is not the labels, or not the labels alone."""
_PLACING: Final = (
    _Rule(
        r"Insufficient nvidia\.com/gpu",
        r"Insufficient (?!nvidia\.com/gpu)|taint(?! \{(?!nvidia))",
        "no node that it may use has a free GPU: add GPU nodes and NVIDIA's device plugin, or leave the component gpu out",
    ),
    _Rule(
        r"Insufficient (cpu|memory)",
        r"Insufficient (?!cpu|memory)",
        "no node that it may use has enough room: add nodes, or apply the component dev, which asks for less",
    ),
    _Rule(r"unbound immediate PersistentVolumeClaims", "Insufficient", "its volume is missing: see the claims in this list"),
    _Rule(
        r"didn't match (Pod's node affinity|node selector)",
        f"{_OTHER_NODES}|anti-affinity",
        "no node has the labels that it asks for: add spot nodes, or leave the component spot out",
    ),
    _Rule(
        r"didn't match pod (affinity/)?anti-affinity",
        f"{_OTHER_NODES}|didn't match (Pod's node|node selector)",
        "each of these servers stays on a node of its own: add nodes",
    ),
)
_STARTING: Final = (
    _Rule(r'secret "gradbus-[\w-]+" not found', _NEVER, "apply the secrets, which `python -m gradbus.deploy kubernetes` prints"),
    _Rule(r'configmap "gradbus-[\w-]+" not found', _NEVER, "apply the manifests again (`kubectl apply --server-side -k`)"),
)
_TOLD: Final = (
    _Rule(
        r'RuntimeClass "[\w.-]+" not found|no runtime for "[\w.-]+" is configured',
        _NEVER,
        "install gVisor on the nodes, and its RuntimeClass, or leave the component gvisor out",
    ),
)
_NO_IMAGE: Final = {"ErrImagePull", "ImagePullBackOff"}
_BEING_MADE: Final = {"ContainerCreating", "PodInitializing"}
_WAITS_FOR_POD: Final = {"WaitForFirstConsumer", "WaitForPodScheduled"}
_WRONG_SETTING: Final = 78
"""Exit status of a service with a wrong setting (sysexits.h: EX_CONFIG)."""
_VOLUME: Final = re.compile(r"storage directory is not a directory|permission denied", re.IGNORECASE)
"""What NATS, the buffer and SeaweedFS say of a volume that belongs to another user."""


def diagnose(said: bytes) -> list[str]:
    """A line for each trouble, from the JSON list that `COMMAND` prints; none if every pod is ready.

    A pod that has just begun has a line too, with the time since when it is not ready. One with a scheduling gate, which a queue holds
    back, has none. Raises SettingsError when the input is no such list.
    """
    objects = read_objects(said)
    told: defaultdict[tuple[str, str, str], list[Event]] = defaultdict(list)
    for event in sorted((one for one in objects if isinstance(one, Event)), key=lambda one: one.at):
        told[event.key].append(event)
    pods, sets = [one for one in objects if isinstance(one, Pod)], [one for one in objects if isinstance(one, PodSet)]
    lines = list(_of_list(pods, sets))
    for one in objects:
        if isinstance(one, Pod):
            lines += _of_pod(one, told[one.key])
        elif isinstance(one, (PodSet, Job)):
            lines += _of_set(one, told[one.key])
        elif isinstance(one, Claim):
            lines += _of_claim(one, told[one.key])
    return lines or list(_of_numbers(pods, sets))


def _of_numbers(pods: Sequence[Pod], sets: Sequence[PodSet]) -> Iterator[str]:
    """Of sets that have too few ready pods, though no other line says so."""
    for one in sets:
        held_back = sum(pod.is_held_back and pod.is_owned_by(one.kind, one.metadata.name) for pod in pods)
        if one.status.ready_replicas + held_back < one.wanted:
            yield f"{one.kind} {one.metadata.name}: {one.status.ready_replicas} of {one.wanted} pods are ready; ask again in a minute"


def _of_list(pods: Sequence[Pod], sets: Sequence[PodSet]) -> Iterator[str]:
    if not pods:
        yield "there is no pod in this list; is the namespace right, and were both commands of docs/kubernetes.md given?"
    if pods and not sets:
        yield f"there is no ReplicaSet or StatefulSet in this list, so it cannot show pods that were refused; give that of `{COMMAND}`"


def _of_claim(claim: Claim, events: Sequence[Event]) -> Iterator[str]:
    name, phase = claim.metadata.name, claim.status.phase
    if phase == "Bound" or (events and events[-1].reason in _WAITS_FOR_POD):
        return
    if phase == "Pending" and claim.spec.storage_class_name is None:
        yield (
            f"claim {name}: it has no storage class, since the cluster had no default one; mark one with the annotation "
            "storageclass.kubernetes.io/is-default-class=true, delete the claim and its pod, and apply again"
        )
    else:
        yield f"claim {name}: it has no volume ({phase}){_quoted(events)}"


def _of_set(one: PodSet | Job, events: Sequence[Event]) -> Iterator[str]:
    """A pod that was refused is in no list of pods. Events outlive refusals that are over; the numbers do not."""
    if one.made < one.wanted:
        refusals = [event for event in events if event.reason == "FailedCreate"]
        yield f"{one.kind} {one.metadata.name}: {one.made} of {one.wanted} pods were made{_quoted(refusals)}"


def _of_pod(pod: Pod, events: Sequence[Event]) -> Iterator[str]:
    """Pods that have ended or are deleted count no more, for their controller replaces them: the numbers of its pods tell if not."""
    name, status = pod.metadata.name, pod.status
    ready, placed = status.condition("Ready"), status.condition("PodScheduled")
    if pod.metadata.deletion_timestamp:
        if pod.is_owned_by("StatefulSet"):
            yield (
                f"pod {name}: it is being deleted, with time until {pod.metadata.deletion_timestamp}, and is replaced when it is gone; "
                f"if its node is lost for good, `kubectl delete node {pod.spec.node_name}`"
            )
    elif status.phase == "Succeeded" or (status.phase == "Failed" and pod.is_owned_by()):
        return
    elif status.phase == "Failed":
        yield f"pod {name}: it has failed ({_flat(f'{status.reason} {status.message}')}), and nothing replaces it"
    elif placed.status == "False" and not pod.is_held_back:
        yield f"pod {name}: {_advised((placed.message or placed.reason).split('preemption:')[0], _PLACING)}"
    elif placed.status != "False" and ready.status != "True":
        since = ready.last_transition_time or pod.metadata.creation_timestamp
        yield from _of_containers(pod, events) or [f"pod {name}: it is not ready since {since}{_starting(events)}"]


def _of_containers(pod: Pod, events: Sequence[Event]) -> list[str]:
    containers = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    lines = [(one.name, _of_container(one, pod, events)) for one in containers if not one.ready]
    return [f"pod {pod.metadata.name}, container {name}: {line}" for name, line in lines if line]


def _of_container(container: Container, pod: Pod, events: Sequence[Event]) -> str:
    """Empty if the container itself says nothing: it is being made, or it is an init container that is over or not begun."""
    waiting, running = container.state.waiting, container.state.running
    ended = container.state.terminated or container.last_state.terminated
    own = [one for one in events if f"{{{container.name}}}" in (one.involved_object.field_path or f"{{{container.name}}}")]
    if running:
        before = f"; its last run, until {ended.finished_at}: {_end(ended, pod)}" if ended else ""
        return f"it runs since {running.started_at} and is not ready{_quoted(own)}{before}"
    if waiting and waiting.reason in _NO_IMAGE:
        failed = [one for one in own if one.message.startswith("Failed to pull image")]
        said = failed[-1].message if failed else f"{waiting.reason}: {waiting.message}"
        return f"the image {container.image} cannot be had ({_flat(said)}); if no registry has it, push it and name yours under `images`"
    if waiting and waiting.reason != "CrashLoopBackOff":
        return "" if waiting.reason in _BEING_MADE else _advised(f"{waiting.reason}: {waiting.message}", _STARTING)
    if ended and not (ended.exit_code == 0 and container in pod.status.init_container_statuses):
        return f"{_end(ended, pod)}{', and is started again' if waiting and not ended.exit_code else ''}"
    return _advised(f"{waiting.reason}: {waiting.message}", _STARTING) if waiting else ""


def _end(ended: Ended, pod: Pod) -> str:
    lines = ended.message.strip().splitlines() or ["it wrote nothing, see `kubectl logs --previous`"]
    refused = [line for line in lines if _VOLUME.search(line)]
    if ended.reason == "OOMKilled":
        return "it was killed at its memory limit; raise resources.limits.memory, or submit smaller runs"
    if ended.exit_code == _WRONG_SETTING:
        return f"a setting is wrong: {_flat(lines[-1])}"
    if refused and pod.has_claim:
        advice = "if that is its volume, choose a storage class that takes fsGroup"
        return f"it ended with status {ended.exit_code}: {_flat(refused[-1])}; {advice}"
    return f"it ended with status {ended.exit_code}: {_flat(lines[-1])}"


def _starting(events: Sequence[Event]) -> str:
    """What a pod waits for that is being made. The summary of volumes that are not mounted hides which one and why."""
    telling = [one for one in events if not one.message.startswith("Unable to attach or mount volumes")] or events
    if telling and telling[-1].reason == "FailedMount":
        return f"; {_advised(telling[-1].message, _STARTING)}"
    return _quoted(telling)


def _advised(said: str, rules: Sequence[_Rule]) -> str:
    """What to do, and the cluster's words; these alone if no rule is sure."""
    advice = _advice(said, rules)
    return f"{advice} ({_flat(said)})" if advice else _flat(said)


def _advice(said: str, rules: Sequence[_Rule]) -> str:
    return next((rule.advice for rule in rules if re.search(rule.sign, said) and not re.search(rule.other, said)), "")


def _quoted(events: Sequence[Event]) -> str:
    """The newest one, with what to do if a rule is sure."""
    if not events:
        return "; no event says why, `kubectl describe` may"
    newest = events[-1]
    advice = _advice(newest.message, _TOLD)
    return f"{'; ' if advice else ''}{advice}; the cluster says ({_flat(f'{newest.at} {newest.reason}')}): {_flat(newest.message)}"


def _flat(said: str) -> str:
    """On one line, without control characters: a container may print any."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
