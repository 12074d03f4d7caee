"""What is said of pods that do not run. The list beside this file is what a Kubernetes 1.20 said of pods that were made to fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.deploy.diagnosis import diagnose
from gradbus.errors import SettingsError

RECORDED = Path(__file__).with_name("kubernetes_troubles.json")
SAID = {
    "pod agent-x": 'secret "gradbus-agent" not found; apply the secrets',
    "pod buffer-0": "may not write its volume (Permission denied); the storage class must take fsGroup",
    "pod conductor-x": "a setting is wrong:",
    "pod gateway-x": "the image gradbus/gateway:9.9.9 cannot be had (ImagePullBackOff); push it",
    "pod nats-0": "its volume is missing: see the claims",
    "pod reward-x": "killed at its memory limit; raise resources.limits.memory",
    "pod trainer-x": "no node has a free GPU: add GPU nodes",
    "claim data-nats-0": "no default storage class; mark one",
    "ReplicaSet rollout-5d8f": "no PriorityClass with name gradbus-nothing was found",
}


def test_each_trouble_is_named_once_with_what_to_do():
    lines = diagnose(RECORDED.read_text())
    assert len(lines) == len(SAID)
    for who, what in SAID.items():
        (line,) = (one for one in lines if one.startswith(who))
        assert what in line


def test_a_pod_that_runs_again_after_a_failure_is_no_trouble():
    items = json.loads(RECORDED.read_text())["items"]
    (pod,) = (one for one in items if one.get("metadata") == {"name": "buffer-0"})
    pod["status"]["containerStatuses"][0] |= {"ready": True, "state": {"running": {}}}
    assert diagnose(json.dumps({"items": [pod]})) == []


@pytest.mark.parametrize(("pods", "lines"), [(["nats-0", "nats-2"], 0), (["nats-0", "nats-1"], 1)])
def test_a_refusal_is_over_once_the_pod_is_there(pods, lines):
    said = "create Pod nats-2 in StatefulSet nats failed error: The POST operation against Pod could not be completed at this time"
    event = {"kind": "Event", "reason": "FailedCreate", "message": said, "involvedObject": {"kind": "StatefulSet", "name": "nats"}}
    made = [{"kind": "Pod", "metadata": {"name": name}, "status": {}} for name in pods]
    assert len(diagnose(json.dumps({"items": [event, *made]}))) == lines


def test_a_container_that_ended_for_another_reason_is_quoted():
    status = {"name": "nats", "image": "nats", "ready": False, "state": {"terminated": {"exitCode": 1, "message": "one\ntwo\n"}}}
    pod = {"kind": "Pod", "metadata": {"name": "nats-1"}, "status": {"containerStatuses": [status]}}
    assert diagnose(json.dumps({"items": [pod]})) == ["pod nats-1, container nats: it ended with status 1: two"]


@pytest.mark.parametrize("given", ["", "No resources found", "[]", "{}"])
def test_what_is_no_list_of_objects_is_refused(given):
    with pytest.raises(SettingsError, match="give the output of `kubectl"):
        diagnose(given)


@pytest.mark.parametrize(("given", "status"), [(RECORDED.read_text(), 1), ('{"items": []}', 0)])
def test_the_exit_status_says_whether_there_is_trouble(given, status):
    done = subprocess.run([sys.executable, "-m", "gradbus.deploy", "diagnose"], input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.strip()
