"""What is said of pods that do not run. The list beside this file is what a Kubernetes 1.20 said of pods that were made to fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.deploy.diagnosis import diagnose
from gradbus.errors import SettingsError

RECORDED = json.loads(Path(__file__).with_name("kubernetes_troubles.json").read_text())["items"]
SAID = {
    "pod buffer-0": "it ended with status 1: Permission denied",
    "pod conductor-x": "a setting is wrong:",
    "pod gateway-x": "the image gradbus/gateway:9.9.9 cannot be had (ImagePullBackOff: Back-off pulling image",
    "pod nats-0": "its volume is missing: see the claims",
    "pod reward-x": "killed at its memory limit; raise resources.limits.memory",
    "pod trainer-x": "no node that it may use has a free GPU: add GPU nodes",
    "claim data-nats-0": "it has no volume (Pending); no event says why",
    "ReplicaSet rollout-5d8f": "1 of 4 pods were made; the cluster says",
}
AT = "2026-11-27T12:00:00Z"
LATER = "2026-11-27T12:05:00Z"
READY = {"type": "Ready", "status": "True"}
CREATING = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
CLAIMED = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-x"}}]}
OWNED = {"kind": "ReplicaSet", "name": "x-5d8f"}


def pod(name="x", *containers, conditions=(), owner=OWNED, spec=None, **more):
    status = {"conditions": list(conditions), "containerStatuses": list(containers)} | more.pop("status", {})
    return {"kind": "Pod", "metadata": {"name": name, "ownerReferences": [owner]} | more, "spec": spec, "status": status}


def event(reason, message, name="x", kind="Pod", at=AT, **more):
    about = {"kind": kind, "name": name} | more
    return {"kind": "Event", "reason": reason, "message": message, "involvedObject": about, "lastTimestamp": at, "eventTime": None}


def pod_set(kind="ReplicaSet", name="x-5d8f", wanted=1, made=1, **status):
    return {"kind": kind, "metadata": {"name": name}, "spec": {"replicas": wanted}, "status": {"replicas": made} | status}


def unplaced(said, reason="Unschedulable"):
    return pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": reason, "message": f"0/5 nodes are available: {said}."}])


def container(**state):
    return {"name": "main", "image": "image", "ready": False} | state


def ended(code, message="", reason="Error"):
    return {"terminated": {"exitCode": code, "message": message, "reason": reason, "finishedAt": AT}}


def diagnosed(*items):
    return diagnose(json.dumps({"items": items}).encode())


def lines_of(*items):
    """Of objects in a deployment in which all else is well."""
    return diagnosed(pod("well", conditions=[READY]), pod_set(name="well", readyReplicas=1), *items)


def test_each_trouble_is_named_once_with_what_to_do():
    lines = lines_of(*RECORDED, pod_set(name="rollout-5d8f", wanted=4))
    assert len(lines) == len(SAID)
    for who, what in SAID.items():
        (line,) = (one for one in lines if one.startswith(who))
        assert what in line
    assert any("no PriorityClass with name gradbus-nothing was found" in line for line in lines)


@pytest.mark.parametrize(
    "items",
    [
        [
            pod_set(made=0),
            event("FailedCreate", 'pods "x" is forbidden: pod rejected: RuntimeClass "gvisor" not found', "x-5d8f", "ReplicaSet"),
        ],
        [
            pod("x", CREATING, conditions=[{"type": "PodScheduled", "status": "True"}]),
            event("FailedCreatePodSandBox", 'failed to get sandbox runtime: no runtime for "runsc" is configured'),
        ],
    ],
)
def test_a_runtime_class_that_is_not_there_is_told_with_what_to_do(items):
    (line,) = lines_of(*items)
    assert "; install gVisor on the nodes, and its RuntimeClass, or leave the component gvisor out; the cluster says" in line


@pytest.mark.parametrize(
    "items",
    [
        [],
        [pod(conditions=[READY], status={"containerStatuses": [container(ready=True, lastState=ended(1))]})],
        [pod(status={"phase": "Failed", "reason": "Terminated"})],
        [pod(status={"phase": "Succeeded"})],
        [pod(deletionTimestamp=AT)],
        [unplaced("gated", reason="SchedulingGated"), pod_set(made=2, wanted=2, readyReplicas=1)],
        [pod_set(made=2, wanted=2, readyReplicas=2), event("FailedCreate", "old", "x-5d8f", "ReplicaSet")],
        [pod_set(made=0, wanted=0), event("FailedCreate", "the template before", "x-5d8f", "ReplicaSet")],
        [{"kind": "Job", "metadata": {"name": "x"}, "spec": {"parallelism": 2, "suspend": True}, "status": {}}],
        [{"kind": "PersistentVolumeClaim", "metadata": {"name": "x"}, "status": {"phase": "Bound"}}],
        [{"kind": "Deployment", "anything": None}],
    ],
)
def test_what_runs_or_is_over_or_is_held_back_is_no_trouble(items):
    assert lines_of(*items) == []


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("3 Insufficient nvidia.com/gpu", "no node that it may use has a free GPU"),
        ("2 Insufficient cpu, 3 node(s) had untolerated taint {nvidia.com/gpu: present}", "no node that it may use has enough room"),
        ("2 Insufficient cpu, 3 Insufficient memory", "no node that it may use has enough room"),
        ("2 Insufficient cpu, 3 node(s) didn't match Pod's node affinity/selector", "no node that it may use has enough room"),
        ("5 node(s) didn't match Pod's node affinity/selector", "no node has the labels that it asks for"),
        (
            "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 4 node(s) didn't match node selector",
            "no node has the labels",
        ),
        ("3 node(s) didn't match pod anti-affinity rules", "each of these servers stays on a node of its own"),
    ],
)
def test_the_scheduler_leaves_one_cause(said, advice):
    (line,) = lines_of(unplaced(f"{said}. preemption: 0/5 nodes are available: 5 No preemption victims found"))
    assert line.startswith(f"pod x: {advice}")
    assert line.endswith(f"(0/5 nodes are available: {said}.)")


@pytest.mark.parametrize(
    "said",
    [
        "2 Insufficient cpu, 3 Insufficient nvidia.com/gpu",
        "2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {nvidia.com/gpu: present}",
        "5 node(s) had untolerated taint {nvidia.com/gpu: present}",
        "2 node(s) were unschedulable, 3 node(s) didn't match Pod's node affinity/selector",
        "3 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector",
        "5 node(s) had volume node affinity conflict",
    ],
)
def test_several_causes_or_one_without_a_rule_are_quoted(said):
    assert lines_of(unplaced(said)) == [f"pod x: 0/5 nodes are available: {said}."]


MOUNT = 'MountVolume.SetUp failed for volume "secrets" : {} not found'
LOST = "it ended with status 3: it wrote nothing, see `kubectl logs --previous`"
NO_MAP = 'configmap "gradbus-settings" not found'
PROBE = "Readiness probe failed: HTTP probe failed with statuscode: 503"
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[secrets]: timed out waiting for the condition"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [event("FailedMount", MOUNT.format('secret "gradbus-gateway"')), event("FailedMount", SUMMARY, at=LATER)],
            "apply the secrets, which",
        ),
        ([event("FailedMount", MOUNT.format('configmap "gradbus-objects"'))], "apply the manifests again"),
        (
            [event("FailedMount", MOUNT.format('secret "my-ca"'))],
            '; MountVolume.SetUp failed for volume "secrets" : secret "my-ca" not found',
        ),
        (
            [event("FailedMount", MOUNT.format('secret "gradbus-gateway"')), event("Pulling", 'Pulling image "x"', at=LATER)],
            f'; the cluster says ({LATER} Pulling): Pulling image "x"',
        ),
        ([event("FailedMount", MOUNT.format('secret "gradbus-gateway"'), uid="of the pod before")], "; no event says why"),
    ],
)
def test_a_pod_that_is_being_made_says_what_it_waits_for(events, said):
    (line,) = lines_of(pod("x", CREATING, CREATING, creationTimestamp=AT), *events)
    assert line.startswith(f"pod x: it is not ready since {AT}")
    assert said in line
    assert not line.endswith("condition)")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (container(state=ended(1, "one\ntwo\n")), "it ended with status 1: two"),
        (container(state=ended(1, "\x1b[2Jtwo")), "it ended with status 1: [2Jtwo"),
        (container(state=ended(1, "PermissionError: Permission denied: '/x'\nlast")), "it ended with status 1: last"),
        (
            container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(0)),
            f"{LOST.replace('3', '0')}, and is started again",
        ),
        (container(state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}), "CrashLoopBackOff: back-off"),
        (
            container(state={"waiting": {"reason": "CreateContainerConfigError", "message": NO_MAP}}),
            f"apply the manifests again (`kubectl apply --server-side -k`) (CreateContainerConfigError: {NO_MAP})",
        ),
        (
            container(state={"waiting": {"reason": "CreateContainerConfigError", "message": "container has runAsNonRoot"}}),
            "CreateContainerConfigError: container has runAsNonRoot",
        ),
        (container(state={"waiting": {"reason": "InvalidImageName", "message": "bad"}}), "InvalidImageName: bad"),
        (
            container(state={"running": {"startedAt": LATER}}, lastState=ended(3)),
            f"it runs since {LATER} and is not ready; the cluster says ({AT} Unhealthy): {PROBE}; its last run, until {AT}: {LOST}",
        ),
    ],
)
def test_a_container_that_is_not_ready_says_why(status, said):
    probed = event("Unhealthy", PROBE, fieldPath="spec.containers{main}")
    other = event("Unhealthy", "of the other", at=LATER, fieldPath="spec.containers{sidecar}")
    assert lines_of(pod("x", status, {**status, "name": "sidecar", "ready": True}), probed, other) == [f"pod x, container main: {said}"]


def test_the_line_about_a_volume_is_quoted_of_pods_that_have_a_claim():
    status = container(state=ended(1, "dir: Permission denied\nlast"))
    (line,) = lines_of(pod("x", status, spec=CLAIMED))
    assert "status 1: dir: Permission denied; if that is its volume, choose a storage class" in line


def test_why_an_image_cannot_be_had_is_in_an_event():
    pulled = event("Failed", 'Failed to pull image "image": toomanyrequests', fieldPath="spec.containers{main}")
    (line,) = lines_of(pod("x", container(state={"waiting": {"reason": "ErrImagePull"}})), pulled)
    assert 'the image image cannot be had (Failed to pull image "image": toomanyrequests)' in line


def test_a_pod_whose_node_is_lost_is_told_although_its_containers_are_ready():
    lost = {"type": "Ready", "status": "False", "lastTransitionTime": LATER}
    (line,) = lines_of(pod("x", container(ready=True), conditions=[lost]), event("NodeNotReady", "Node is not ready"))
    assert line == f"pod x: it is not ready since {LATER}; the cluster says ({AT} NodeNotReady): Node is not ready"


def test_a_statefulset_waits_for_its_deleted_pod():
    server = {"kind": "StatefulSet", "name": "nats"}
    (line,) = lines_of(pod("nats-0", conditions=[READY], owner=server, deletionTimestamp=AT, spec={"nodeName": "node-1"}))
    assert "pod nats-0: it is being deleted" in line
    assert "`kubectl delete node node-1`" in line


def test_a_pod_that_failed_and_that_nothing_replaces_is_told():
    alone = pod(ownerReferences=[], status={"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"})
    (line,) = lines_of(alone)
    assert "pod x: it has failed (Evicted the node was low on memory)" in line


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (pod_set(wanted=4, made=1), "ReplicaSet x-5d8f: 1 of 4 pods were made"),
        (pod_set("StatefulSet", "trainer-ranks", wanted=11, made=10), "StatefulSet trainer-ranks: 10 of 11 pods were made"),
        (
            {"kind": "Job", "metadata": {"name": "x"}, "spec": {"parallelism": 2, "completions": 3}, "status": {"active": 1}},
            "Job x: 1 of 2",
        ),
    ],
)
def test_a_refusal_is_told_by_the_newest_event_while_pods_are_missing(owner, said):
    kind, name = owner["kind"], owner["metadata"]["name"]
    told = [event("FailedCreate", "exceeded quota", name, kind, at=LATER), event("FailedCreate", "before", name, kind)]
    (line,) = lines_of(owner, *told, event("SuccessfulCreate", "later", name, kind, at=LATER))
    assert line.startswith(said)
    assert line.endswith(f"; the cluster says ({LATER} FailedCreate): exceeded quota")


def test_pods_of_a_set_that_no_line_explains_are_counted():
    assert lines_of(pod_set("StatefulSet", "nats", wanted=3, made=3, readyReplicas=2)) == [
        "StatefulSet nats: 2 of 3 pods are ready; ask again in a minute"
    ]


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({}, "FailedBinding", ["claim x: it has no storage class, since the cluster had no default one; mark one"]),
        ({"storageClassName": "fast"}, "ProvisioningFailed", ["claim x: it has no volume (Pending); the cluster says"]),
        ({"storageClassName": "fast"}, "WaitForFirstConsumer", []),
    ],
)
def test_a_claim_without_a_volume_is_told_unless_it_waits_for_its_pod(spec, reason, said):
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "x"}, "spec": spec, "status": {"phase": "Pending"}}
    lines = lines_of(claim, event(reason, "of the claim", kind="PersistentVolumeClaim"))
    assert [line.startswith(start) for line, start in zip(lines, said, strict=True)] == [True] * len(said)


def test_lists_that_cannot_show_every_trouble_say_so():
    assert [line.split(";")[0] for line in diagnosed()] == ["there is no pod in this list"]
    assert "`kubectl -n gradbus get pods,replicasets" in diagnosed(pod(conditions=[READY]))[0]


@pytest.mark.parametrize(
    "given",
    [
        *(b"", b"No resources found", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"items": null}', b'{"items": [1]}', b'{"items": [null]}'),
        *(b'{"items": [{"kind": "Pod"}]}', b'{"items": [{"kind": []}]}', b'{"items": [{"kind": "Event"}]}'),
        b'{"items": [{"kind": "Pod", "metadata": {"name": 1}}]}',
        b'{"items": [{"kind": "ReplicaSet", "metadata": {}, "spec": {"replicas": 1e400}}]}',
    ],
)
def test_what_is_no_list_of_objects_is_refused(given):
    with pytest.raises(SettingsError, match="give the output of `kubectl"):
        diagnose(given)


@pytest.mark.parametrize(
    ("items", "status", "said"),
    [
        ([pod(conditions=[READY]), pod_set(readyReplicas=1)], 0, "every pod runs and is ready"),
        ([], 1, "there is no pod in this list"),
    ],
)
def test_the_exit_status_says_whether_there_is_trouble(items, status, said):
    command = [sys.executable, "-m", "gradbus.deploy", "diagnose"]
    done = subprocess.run(command, input=json.dumps({"items": items}), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith(said)
