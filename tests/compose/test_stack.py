"""The stack in containers survives crashes. The runs are the demo's: equal digests mean that nothing was lost or duplicated."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time

import httpx2
import pytest
from compose_lab import FINAL, NOBODY, PROJECT, ROOT, SERVICES, STEPS, digest_of, proxied, until

from gradbus.client import Client, document

REACHED = """
import socket, sys
for host in {hosts}:
    try:
        socket.create_connection((host, {port}), 2).close()
        print(host)
    except OSError:
        pass
"""
WITHOUT_CERTIFICATE = """
import socket, ssl
context = ssl.create_default_context(cafile="/run/gradbus/ca.crt")
for host, port in {servers}:
    try:
        with context.wrap_socket(socket.create_connection((host, port), 10), server_hostname=host) as connection:
            connection.sendall(b"PING\\r\\n")
            print(host, connection.recv(100))
    except OSError as error:
        print(host, type(error).__name__)
"""
TLS_SERVERS = [("nats", 4222), ("buffer", 6379), ("weight-store", 50051), ("reward", 50051), ("reference", 50051)]


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_run_posted_by_curl_alone_trains_and_succeeds(demo):
    assert demo.returncode == 0, demo.stdout[-2000:] + demo.stderr[-2000:]
    assert f"succeeded  step {STEPS} of {STEPS}" in demo.stdout


def test_only_the_gateway_and_the_agents_endpoint_are_reached_from_outside_and_ask_for_a_key(compose, demo):
    published = subprocess.run(
        ["docker", "ps", "--filter", f"label=com.docker.compose.project={PROJECT}", "--format", "{{.Ports}}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    ports = {line for line in published.replace(", ", "\n").splitlines() if "->" in line}
    assert ports == {f"127.0.0.1:{port}->8080/tcp" for port in (compose.port, compose.agent_port)}
    for path in ("/v1/chat/completions", "/v1/agent/claim"):
        assert httpx2.post(f"http://127.0.0.1:{compose.agent_port}{path}", json={}).status_code == 401, path
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


def test_what_is_built_already_is_not_created_again(compose, demo):
    compose.up("--build")
    built = compose.containers()
    compose.up()
    compose.up("--build")
    assert compose.containers() == built


def test_every_log_line_is_json(compose, demo):
    assert compose.foreign_lines() == []


def test_a_port_of_the_machine_is_not_reached_from_an_internal_network(compose, demo):
    networks = json.loads(docker("network", "inspect", *docker("network", "ls", "--quiet").split()))
    gateways = {config.get("Gateway") for network in networks for config in network["IPAM"]["Config"] or ()} - {None, ""}
    hosts = sorted({*gateways, *(each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET))})
    with socket.create_server(("0.0.0.0", 0)) as listener:
        threading.Thread(target=accept_all, args=(listener,), daemon=True).start()
        code = REACHED.format(hosts=hosts, port=listener.getsockname()[1])
        for service in ("trainer", "rollout", "conductor", "weight-store"):  # reference asks teachers outside
            assert compose.python(service, code) == "", service
        assert compose.python("gateway", code) != ""  # the probe itself works, from a network with a way out


def accept_all(listener):
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def test_servers_refuse_whoever_shows_no_certificate(compose, demo):
    said = compose.python("conductor", WITHOUT_CERTIFICATE.format(servers=TLS_SERVERS)).splitlines()
    refused = {"SSLError", "SSLEOFError", "ConnectionResetError", "b''"}
    assert [line.split()[0] for line in said] == [host for host, _ in TLS_SERVERS]
    assert {line.split()[1] for line in said} <= refused


def test_one_variable_makes_the_gateway_speak_https(compose, submit, tmp_path):
    compose.up("--no-build", GATEWAY_HTTPS="1")
    (tmp_path / "ca.crt").write_text(compose.made("authority"))
    with Client(compose.url.replace("http:", "https:"), compose.made("key"), authority=tmp_path / "ca.crt") as client:
        assert document(client.runs_page())["data"]
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{compose.url}/v1/runs")
    compose.up("--no-build")


def test_the_demos_script_ends_when_the_gateway_is_away(compose, demo):
    compose("stop", "gateway")
    done = compose.demo(1, PATIENCE="3")
    assert done.returncode == 1
    assert "did not take" in done.stderr.splitlines()[-1]
    compose.up("--no-build")


@pytest.mark.parametrize(("name", "most"), [("conductor", 120), ("weight-store", 120), ("reward", 190), ("gateway", 520)])
def test_an_image_without_torch_adds_little_to_its_base(compose, name, most):
    def size(image):
        asked = ["docker", "image", "inspect", "--format", "{{.Size}}", image]
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)

    base = re.search(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "services/conductor/Dockerfile").read_text(), re.MULTILINE)[1]
    assert (
        size(f"gradbus/{name}") - size(base) < most << 20
    )  # the official base has 130 MB; SymPy, and transformers and pyarrow, add to two


def test_the_proxy_that_docker_gives_containers_is_not_asked_for_what_is_inside(compose, submit, true_digest, tmp_path):
    compose.up("--no-build", "--force-recreate", DOCKER_CONFIG=proxied(tmp_path))
    for service in SERVICES:
        assert compose("exec", "-T", service, "printenv", "http_proxy").stdout.strip() == NOBODY, service
    with compose.client() as client:
        run_id = submit(client)
        assert until(client, run_id, STEPS + 1)["state"] == "succeeded"
        assert digest_of(client, run_id) == true_digest
    compose.up("--no-build", "--force-recreate")


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


def test_a_reward_service_that_starts_later_is_waited_for(compose, submit, true_digest):
    compose.up("--no-build", REWARD_SERVICE="grpc://late-reward:50051")
    last = compose("logs", "reward", "--no-log-prefix", "--tail", "1").stdout
    assert "REWARD_SERVICE=grpc://late-reward:50051: the scorer's host 'late-reward' has no address" in last
    with compose.client() as client:
        run_id = submit(client)
        while (run := document(client.run(run_id)))["state"] != "waiting_for_reward":
            assert run["state"] not in FINAL, run["reason"]
            time.sleep(0.5)
        docker("run", "--detach", "--name", "late-reward", "--network", f"{PROJECT}_rewards", "gradbus/example-reward")
        try:
            run = until(client, run_id, STEPS + 1)
        finally:
            docker("rm", "--force", "late-reward")
        assert run["state"] == "succeeded", run["reason"]
        assert digest_of(client, run_id) == true_digest
    compose.up("--no-build")


def test_a_reward_address_that_no_scorer_may_have_is_said_in_the_last_line(compose, demo):
    done = compose("up", "--wait", "--no-build", "reward", check=False, REWARD_SERVICE="grpc://169.254.169.254:1")
    assert done.returncode != 0
    assert "reward-1 is unhealthy" in done.stderr
    assert "which no scorer may use" in compose("logs", "reward", "--no-log-prefix", "--tail", "1").stdout
    compose.up("--no-build", "reward")


def test_a_port_in_use_is_named(compose, demo):
    other = compose("run", "--rm", "--no-deps", "-T", "--publish", f"127.0.0.1:{compose.port}:8080", "gateway", check=False)
    assert other.returncode != 0
    assert str(compose.port) in other.stderr.splitlines()[-1]
