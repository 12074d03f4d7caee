"""A deployment on a cluster ends runs in the weights of the embedded stack, whatever is killed meanwhile. The tests are in this order."""

from __future__ import annotations

import time
import uuid

import httpx2
import pytest
from cluster_lab import NAMESPACE, STEPS
from smoke import EXAMPLE

KILLED = ("conductor", "rollout", "trainer", "weight-store", "reward", "nats", "buffer", "objects", "gateway")


@pytest.fixture
def submitted(cluster, client, spec):
    """The run, begun."""
    cluster.forward()
    return client.submit(spec, EXAMPLE, uuid.uuid4().hex).id


def needs_nodes(cluster):
    if not (cluster.node_off and cluster.node_on):
        pytest.skip("GRADBUS_TEST_NODE_OFF and GRADBUS_TEST_NODE_ON are no commands that turn a node off and on")


def test_a_run_by_rest_ends_in_the_weights_of_the_embedded_stack(cluster, client, submitted, true_digest):
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)


def test_the_gateway_asks_for_a_key(client):
    assert httpx2.get(f"{client.url}/v1/runs", headers={"Authorization": "Bearer wrong.key"}).status_code == 401


def test_replicas_are_on_several_nodes(cluster):
    """Spreading is a wish: where nodes are full, replicas of one component may share a node, but not those of every component."""
    components = ("conductor", "gateway", "reward")
    where = "jsonpath={.items[*].spec.nodeName}"
    nodes = {name: cluster("get", "pods", "-l", f"app.kubernetes.io/component={name}", "-o", where).split() for name in components}
    assert all(nodes.values()), f"a component has no pods on nodes: {nodes}"
    several = [set(one) for one in nodes.values() if len(one) > 1]
    assert not several or any(len(one) > 1 for one in several), f"no component is on several nodes: {nodes}"


def test_a_container_runs_as_nobody_special_and_cannot_write_its_root(cluster):
    looked = "id -u; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; touch /x 2>/dev/null && echo written || true"
    for name in ("deploy/conductor", "deploy/trainer", "deploy/rollout", "deploy/gateway", "statefulset/nats", "statefulset/buffer"):
        status = cluster("exec", name, "--", "sh", "-c", looked)
        assert status.split() == ["10001", "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"], name


def test_pods_of_every_component_are_killed_in_one_run(cluster, client, submitted, true_digest):
    for number, component in enumerate(KILLED):
        assert cluster.until(client, submitted, 5 + 10 * number)["state"] == "running", component
        cluster.kill(component)
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)
    cluster.wait()


def test_the_buffer_is_lost_with_its_volume(cluster, client, submitted, true_digest):
    cluster.until(client, submitted, 15)
    cluster.lose_volume("buffer")
    assert cluster.until(client, submitted, 0)["state"] == "running"
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)


def test_a_clustered_nats_loses_each_server_and_then_its_quorum(cluster, client, submitted, true_digest):
    if "ha" not in cluster.components:
        pytest.skip("GRADBUS_TEST_COMPONENTS does not name ha")
    for number in range(3):
        cluster.until(client, submitted, 5 + 10 * number)
        cluster("delete", "pod", f"nats-{number}", "--force", "--grace-period=0", "--wait=false")
    cluster.until(client, submitted, 35)
    cluster("scale", "statefulset", "nats", "--replicas=1")
    cluster("wait", "--for=delete", "pod/nats-1", "--timeout=120s", check=False)
    time.sleep(20)  # nothing can be written meanwhile
    cluster("scale", "statefulset", "nats", "--replicas=3")
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)
    cluster.wait()


def test_a_node_is_lost_and_comes_back(cluster, client, submitted, true_digest):
    needs_nodes(cluster)
    cluster.until(client, submitted, 10)
    node = cluster.node_of("trainer")
    cluster.command(cluster.node_off, node)
    cluster("wait", "--for=condition=Ready=Unknown", f"node/{node}", "--timeout=60s", check=False)
    time.sleep(45)  # until the pods of the lost node have been given up
    cluster.command(cluster.node_on, node)
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)
    cluster.wait()


def test_the_node_of_the_buffer_is_lost_with_its_disk(cluster, client, submitted, true_digest):
    needs_nodes(cluster)
    cluster.until(client, submitted, 10)
    node = cluster.lose_node_with_volume("buffer")
    try:
        assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)
    finally:
        cluster.command(cluster.node_on, node)
    cluster.wait()


def test_a_node_is_taken_away_with_notice_and_a_trainer_is_preempted(cluster, client, submitted, true_digest):
    needs_nodes(cluster)
    cluster.until(client, submitted, 10)
    node = cluster.node_of("rollout")
    cluster.give_notice(node)
    cluster.until(client, submitted, 40)
    cluster.take_back(node)
    cluster("scale", "deployment", "trainer", "--replicas=0")
    preempted = cluster.until_it(client, submitted, lambda run: "none serves the run; start one" in run["waiting_for"])
    assert preempted["state"] == "running"
    cluster("scale", "deployment", "trainer", "--replicas=1")
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)
    cluster.wait()


def test_everything_is_replaced_as_by_an_upgrade(cluster, client, submitted, true_digest):
    cluster.until(client, submitted, 10)
    cluster("rollout", "restart", *cluster("get", "deployments,statefulsets", "-o", "name").split())
    cluster.wait()
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)


def test_workers_come_and_go(cluster, client, submitted, true_digest):
    for step, replicas in ((5, 4), (30, 1)):
        cluster.until(client, submitted, step)
        cluster("scale", "deployment", "rollout", f"--replicas={replicas}")
    assert cluster.finished(client, submitted, STEPS) == ("succeeded", true_digest)


def test_a_trainer_of_two_ranks_loses_each_of_them(cluster, client, spec):
    if not cluster.has_ranks:
        pytest.skip("GRADBUS_TEST_RANKS is not set: the nodes may lack the image gradbus/trainer-deepspeed")
    cluster.components.append("ranks")
    cluster.apply()
    cluster.forward()
    steps = 30
    short = spec | {"trainer": {**spec["trainer"], "backend": "deepspeed"}, "schedule": {**spec["schedule"], "steps": steps}}
    calm = client.submit(short, EXAMPLE, uuid.uuid4().hex).id
    state, true_digest = cluster.finished(client, calm, steps)
    assert state == "succeeded"
    killed = client.submit(short, EXAMPLE, uuid.uuid4().hex).id
    for number in range(2):
        cluster.until(client, killed, 5 + 12 * number)
        cluster("delete", "pod", f"trainer-ranks-{number}", "--force", "--grace-period=0", "--wait=false")
    assert cluster.finished(client, killed, steps) == ("succeeded", true_digest)


def test_uninstalling_leaves_nothing(cluster):
    cluster.uninstall()
    bound = 'jsonpath={.items[?(@.status.phase=="Bound")].spec.claimRef.namespace}'
    assert NAMESPACE not in cluster("get", "persistentvolumes", "-o", bound).split()
    assert cluster("get", "namespaces", NAMESPACE, "--ignore-not-found", "-o", "name") == ""
    assert cluster("get", "priorityclasses", "-l", "app.kubernetes.io/name=gradbus", "-o", "name") == ""
