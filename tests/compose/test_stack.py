"""The stack in containers survives crashes. The runs are the demo's: equal digests mean that nothing was lost or duplicated."""

from __future__ import annotations

import re
import subprocess

import httpx2
import pytest
from compose_lab import PROJECT, ROOT, STEPS, digest_of, until

SERVICES = ("nats", "buffer", "objects", "weight-store", "reward", "reference", "conductor", "gateway", "rollout", "trainer")


def test_a_run_posted_by_curl_alone_trains_and_succeeds(demo):
    assert demo.returncode == 0, demo.stdout[-2000:] + demo.stderr[-2000:]
    assert f"succeeded  step {STEPS} of {STEPS}" in demo.stdout


def test_only_the_gateway_is_reached_from_outside_and_asks_for_a_key(compose, demo):
    published = subprocess.run(
        ["docker", "ps", "--filter", f"label=com.docker.compose.project={PROJECT}", "--format", "{{.Ports}}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert [line for line in published.replace(", ", "\n").splitlines() if "->" in line] == [f"127.0.0.1:{compose.port}->8080/tcp"]
    assert httpx2.get(f"{compose.url}/v1/runs").status_code == 401
    assert httpx2.get(f"{compose.url}/v1/runs", headers={"Authorization": "Bearer wrong.key"}).json()["detail"].startswith("the API key")


def test_a_container_runs_as_nobody_special_and_cannot_write_its_root(compose, demo):
    for service in SERVICES:
        looked = "id -u; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; touch /x 2>/dev/null && echo written || true"
        status = compose("exec", "-T", service, "sh", "-c", looked).stdout
        assert status.split() == ["10001", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"], service


def test_graders_are_confined_inside_the_container(compose, demo):
    said = [line for line in compose("logs", "reward", "--no-log-prefix").stdout.splitlines() if '"graders_confined"' in line]
    assert said
    assert '"seccomp": true' in said[-1]


@pytest.mark.parametrize("name", ["conductor", "weight-store", "reward", "gateway"])
def test_an_image_without_torch_adds_little_to_its_base(compose, name):
    def size(image):
        asked = ["docker", "image", "inspect", "--format", "{{.Size}}", image]
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)

    base = re.search(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "services/conductor/Dockerfile").read_text(), re.MULTILINE)[1]
    assert size(f"gradbus/{name}") - size(base) < 120 << 20  # the official base has 130 MB: 250 MB in all


def test_three_rollouts_and_a_crash_of_every_container_change_no_bit(compose, submit, true_digest):
    compose.up("--no-build", "--scale", "rollout=3")
    with compose.client() as client:
        run_id = submit(client)
        for at, service in enumerate(SERVICES):
            until(client, run_id, 1 + 2 * at)
            compose.crash(service)
        run = until(client, run_id, STEPS + 1)
        assert run["state"] == "succeeded", run["reason"]
        assert digest_of(client, run_id) == true_digest
    compose.up("--no-build", "--no-recreate", "--scale", "rollout=3")  # waits until each is healthy again


def test_a_trainer_killed_by_hand_stays_down_until_it_is_started_and_the_run_goes_on(compose, submit, true_digest):
    with compose.client() as client:
        run_id = submit(client)
        until(client, run_id, 5)
        compose("kill", "trainer")
        compose("start", "trainer")
        assert until(client, run_id, STEPS + 1)["state"] == "succeeded"
        assert digest_of(client, run_id) == true_digest


@pytest.mark.parametrize("address", ["grpc://example-reward:50051", "http://example-reward-http:9000/score"])
def test_one_variable_swaps_the_reward_service(compose, submit, true_digest, address):
    compose.up("--no-build", REWARD_SERVICE=address, COMPOSE_PROFILES="example-reward")
    with compose.client() as client:
        run_id = submit(client)
        run = until(client, run_id, STEPS + 1)
        assert run["state"] == "succeeded", run["reason"]
        assert run["spec"]["reward"]["service"] == address
        assert digest_of(client, run_id) == true_digest  # both score like the demo's graders


def test_a_reward_address_that_does_not_resolve_is_said_in_the_last_line(compose, demo):
    done = compose("up", "--wait", "--no-build", "reward", check=False, REWARD_SERVICE="grpc://nowhere-at-all:50051")
    assert done.returncode != 0
    assert "reward-1 is unhealthy" in done.stderr
    last = compose("logs", "reward", "--no-log-prefix", "--tail", "1").stdout
    assert "REWARD_SERVICE=grpc://nowhere-at-all:50051: the scorer's host 'nowhere-at-all' has no address" in last
    compose.up("--no-build", "reward")


def test_a_port_in_use_is_named(compose, demo):
    other = compose("run", "--rm", "--no-deps", "-T", "--publish", f"127.0.0.1:{compose.port}:8080", "gateway", check=False)
    assert other.returncode != 0
    assert str(compose.port) in other.stderr.splitlines()[-1]
