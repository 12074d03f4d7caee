"""Renders the services of docker-compose.yml from the table of roles: `python deploy/compose/render.py`. A test holds the file to it.

The table (`gradbus.deploy.roles`) gives environment, addresses, health pages, secrets and dependencies. This file adds what only
containers have: images, memory, networks, GPUs and the variables of `docker compose` that set a service's options.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gradbus.deploy.roles import AGENTS_PORT, HEALTH_PORT, ROLES, Role, container_placement, role_environment

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
NOTE = "rendered from libs/gradbus/deploy/roles.py by deploy/compose/render.py"
BEGIN, END = "  # Begin: {} " + NOTE + "\n", "  # End: {}\n"
ANCHORS = {"nats": "GRADBUS_NATS_URL", "buffer": "GRADBUS_BUFFER_URL", "objects": "GRADBUS_OBJECTS_URL"}
"""Server, which is also the name of its anchor, to its variable."""
BUCKET = "bucket"
"""The rendered part of the anchor `objects`; docker-compose.yml adds the address of the S3 server."""
BASE = ("GRADBUS_SECRETS_DIR", "GRADBUS_HEALTH", "GRADBUS_CACHE_DIR", "GRADBUS_TLS_DIR", "GRPC_VERBOSITY", "TORCH_CPP_LOG_LEVEL")

TRACE = {"GRADBUS_TRACE_STEPS": "${TRACE_STEPS:-1.0}", "GRADBUS_TRACE_STEP_SECONDS": "${TRACE_STEP_SECONDS:-1.0}"}
TEXTS = {"GRADBUS_TRACE_TEXTS": "${TRACE_TEXTS:-false}"}
REWARDS = {
    "GRADBUS_REWARD_SERVICE": "${REWARD_SERVICE:-}",
    "GRADBUS_ALLOWED_HOSTS": '${REWARD_HOSTS:-["example-reward", "example-reward-http"]}',
    "GRADBUS_PYTHON_GRADERS": "${PYTHON_GRADERS:-true}",
}
ENVIRONMENTS = {
    "GRADBUS_ALLOWED_HOSTS": "${ENVIRONMENT_HOSTS:-[]}",
    "GRADBUS_PYTHON_ENVIRONMENTS": "${PYTHON_ENVIRONMENTS:-true}",
}
TEACHERS = {"GRADBUS_TEACHER_HOSTS": "${TEACHER_HOSTS:-[]}"}
AGENTS = {
    "GRADBUS_ALLOWED_HOSTS": "${AGENT_HOSTS:-[]}",
    "GRADBUS_PUBLIC_URL": "${AGENT_URL:-}",
    "GRADBUS_HTTPS_DIR": "${AGENT_HTTPS:+/run/gradbus}",
}
BROADCAST = {"GRADBUS_BROADCAST_BACKEND": "${BROADCAST_BACKEND:-gloo}"}
"""By gloo, because NCCL refuses two processes on one card."""
ONE_CARD = "${TRAINER_GPU:-0}"
SHARED_CARD = '${SGLANG_ARGUMENTS:-["--mem-fraction-static", "0.4"]}'
"""Of a card that is the trainer's too, SGLang would otherwise take nearly all memory."""
GPU = '{{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["{}"], capabilities: [gpu]}}]}}}}}}'


@dataclass(frozen=True)
class Container:
    """How a role's container differs from those of other roles."""

    role: str
    memory: str
    options: dict[str, str] = field(default_factory=dict)
    """Variables of the role that users set by variables of `docker compose`."""
    networks: tuple[str, ...] = ()
    """Networks besides `internal` and `storage`."""
    optional: tuple[str, ...] = ()
    """Containers of other profiles that it waits for."""
    cache: str = ""
    """Volume of its cache folder; empty: `cache` for a role that computes, none for others."""
    start_period: str = ""
    extra: tuple[str, ...] = ()
    """More lines of its block."""
    answers_as: str = ""
    """Name by which others reach it, where it replaces another container."""
    gpu: str = ""
    """Variable and default of the device of a container of the profile `gpu`; empty: a container on the CPU."""
    engine: str = ""
    """Suffix of the image, and name of the Dockerfile, of a container of the profile `gpu`."""
    python: str = "python"
    comment: str = ""


CONTAINERS = {
    "weight-store": Container("weight_store", "${WEIGHT_STORE_MEMORY:-1g}"),
    "reward": Container(
        "reward",
        "${REWARD_MEMORY:-2g}",
        REWARDS,
        networks=("rewards",),
        optional=("example-reward", "example-reward-http"),
        start_period="60s",
        extra=('extra_hosts: ["host.docker.internal:host-gateway"]',),
        comment="Not ready while REWARD_SERVICE has an address that no scorer may have; the shorter start period shows that soon.",
    ),
    "environment": Container(
        "environment",
        "${ENVIRONMENT_MEMORY:-2g}",
        ENVIRONMENTS,
        networks=("rewards",),
        extra=('extra_hosts: ["host.docker.internal:host-gateway"]',),
    ),
    "agent": Container(
        "agent",
        "${AGENT_MEMORY:-1g}",
        AGENTS,
        networks=("rewards", "front"),
        extra=(
            f'ports: ["127.0.0.1:${{AGENT_PORT:-8090}}:{AGENTS_PORT}"]',
            'extra_hosts: ["host.docker.internal:host-gateway"]',
        ),
    ),
    "reference": Container(
        "reference",
        "${REFERENCE_MEMORY:-4g}",
        TEACHERS,
        networks=("front",),
        extra=("scale: ${CPU_WORKERS:-1}", 'extra_hosts: ["host.docker.internal:host-gateway"]'),
    ),
    "conductor": Container("conductor", "${CONDUCTOR_MEMORY:-2g}", {"GRADBUS_TRACE_GROUPS": "${TRACE_GROUPS:-0.01}"}, cache="datasets"),
    "trainer": Container("trainer", "${TRAINER_MEMORY:-8g}", TRACE, extra=("scale: ${CPU_WORKERS:-1}",)),
    "rollout": Container("rollout", "${ROLLOUT_MEMORY:-8g}", TEXTS, extra=("scale: ${CPU_WORKERS:-1}",)),
    "reference-gpu": Container(
        "reference",
        "${REFERENCE_MEMORY:-16g}",
        {"GRADBUS_DEVICE": "cuda"} | TEACHERS,
        networks=("front",),
        extra=('extra_hosts: ["host.docker.internal:host-gateway"]',),
        answers_as="reference",
        gpu=f"${{REFERENCE_GPU:-{ONE_CARD}}}",
        engine="gpu",
        comment="These three replace the three on the CPU: CPU_WORKERS=0 docker compose --profile gpu up. Unverified: no GPU has run them.",
    ),
    "trainer-gpu": Container(
        "trainer",
        "${TRAINER_MEMORY:-64g}",
        TRACE
        | {"GRADBUS_DEVICE": "cuda", "GRADBUS_DEVICE_NAME": f"gpu-{ONE_CARD}"}
        | BROADCAST
        | {"GRADBUS_BROADCAST_HOST": "trainer-gpu"},
        gpu=ONE_CARD,
        engine="deepspeed",
    ),
    "rollout-gpu": Container(
        "rollout",
        "${ROLLOUT_MEMORY:-64g}",
        TEXTS
        | {"GRADBUS_DEVICE": "cuda", "GRADBUS_DEVICE_NAME": f"gpu-${{ROLLOUT_GPU:-{ONE_CARD}}}"}
        | BROADCAST
        | {"GRADBUS_BROADCAST_HOST": "rollout-gpu", "GRADBUS_SGLANG_ARGUMENTS": SHARED_CARD},
        gpu=f"${{ROLLOUT_GPU:-{ONE_CARD}}}",
        engine="sglang",
        python="/opt/gradbus/bin/python",
    ),
    "gateway": Container(
        "gateway",
        "${GATEWAY_MEMORY:-2g}",
        # Uploads and models from the hub pass through TMPDIR, and may be larger than memory.
        REWARDS
        | TEACHERS
        | {
            "GRADBUS_HTTPS_DIR": "${GATEWAY_HTTPS:+/run/gradbus}",
            "GRADBUS_SERVED_HOSTS": "${SERVED_HOSTS:-[]}",
            "TMPDIR": "/var/cache/gradbus",
        },
        networks=("front",),
        cache="uploads",
        extra=(
            'ports: ["127.0.0.1:${GATEWAY_PORT:-8080}:8080"]',
            'extra_hosts: ["host.docker.internal:host-gateway"]',
        ),
    ),
}


def rendered(text: str) -> str:
    """`text`, the content of docker-compose.yml, with its two rendered parts made anew."""
    anchors = "".join(f"  {line}\n" for line in _anchors())
    services = "\n".join("".join(f"  {line}".rstrip() + "\n" for line in _service(name, of)) for name, of in CONTAINERS.items())
    for part, content in (("addresses", anchors), ("services", services)):
        before, begin, rest = text.partition(BEGIN.format(part))
        _, end, after = rest.partition(END.format(part))
        text = before + begin + content + end + after
    return text


def _anchors() -> list[str]:
    environment = role_environment(ROLES["conductor"], container_placement(ROLES["conductor"]))
    lines = ["process: &process", *(f"  {name}: {_quoted(environment[name])}" for name in BASE)]
    for server, name in ANCHORS.items():
        anchor = BUCKET if server == "objects" else server
        lines += [f"{anchor}: &{anchor}", f"  {name}: {environment[name]}"]
    return lines


def _quoted(value: str) -> str:
    """`value` as YAML reads a text: a number needs quotes."""
    return f'"{value}"' if value.isdecimal() else value


def _service(name: str, container: Container) -> list[str]:
    role = ROLES[container.role]
    lines = [f"# {container.comment}"] if container.comment else []
    lines += [f"{name}:", "  <<: *service"]
    lines += [f"  {line}" for line in (*_image(role, container), *container.extra, *_network_and_health(role, container))]
    lines += ["  environment:", *(f"    {line}" for line in _environment(role, container))]
    cache = container.cache or ("cache" if role.computes else "")
    volumes = [f'"secrets-{role.hostname}:/run/gradbus:ro"', *([f'"{cache}:/var/cache/gradbus"'] if cache else [])]
    return [*lines, f"  volumes: [{', '.join(volumes)}]", *(f"  {line}" for line in _dependencies(role, container))]


def _image(role: Role, container: Container) -> list[str]:
    image = f"image: gradbus/{role.hostname}{f'-{container.engine}' if container.engine else ''}:${{GRADBUS_TAG:-latest}}"
    file = f"services/{role.name}/{f'{container.engine}.' if container.engine else ''}Dockerfile"
    torch = ', args: {TORCH_INDEX_URL: "${TORCH_INDEX_URL:-}"}' if role.computes and not container.engine else ""
    lines = [image, f"build: {{context: ., dockerfile: {file}{torch}}}", f"mem_limit: {container.memory}"]
    if container.gpu:
        lines = ["profiles: [gpu]", *lines, "pids_limit: 4096", "shm_size: 8g", f"deploy: {GPU.format(container.gpu)}"]
    return lines


def _network_and_health(role: Role, container: Container) -> list[str]:
    """What differs from `x-service`, which has the networks of most roles and asks for readiness with the Python of most."""
    networks = ["internal", *(["storage"] if role.stores_objects else []), *container.networks]
    lines = [f"networks: [{', '.join(networks)}]"] if networks != ["internal", "storage"] else []
    if container.answers_as:
        others = "".join(f", {name}: {{}}" for name in networks if name != "internal")
        lines = [f"networks: {{internal: {{aliases: [{container.answers_as}]}}{others}}}"]
    check = [f'  test: ["CMD", "{container.python}", "-IS", "/opt/ready.py", "{HEALTH_PORT}"]']
    differs = check if container.python != "python" else []
    differs += [f"  start_period: {container.start_period}"] if container.start_period else []
    return [*lines, "healthcheck:", "  <<: *ready", *differs] if differs else lines


def _environment(role: Role, container: Container) -> list[str]:
    own = role_environment(role, container_placement(role))
    servers = [server for server, variable in ANCHORS.items() if variable in own]
    anchors = ", ".join(f"*{anchor}" for anchor in ("base", *servers))
    hidden = {*BASE, *ANCHORS.values()}
    variables = {name: value for name, value in own.items() if name not in hidden} | container.options
    if role.computes and not container.gpu:  # a little less than the container's limit, which would kill the process without an error
        variables["GRADBUS_MEMORY_LIMIT"] = container.memory
    return [f"<<: {f'[{anchors}]' if servers else anchors}", *(f"{name}: {value}" for name, value in variables.items())]


def _dependencies(role: Role, container: Container) -> list[str]:
    if role.uses_nats:
        return ["depends_on: *started"]
    optional = [f"  {name}: {{condition: service_healthy, required: false}}" for name in container.optional]
    return ["depends_on:", "  secrets: {condition: service_completed_successfully}", *optional]


if __name__ == "__main__":
    COMPOSE.write_text(rendered(COMPOSE.read_text()))
    print(COMPOSE.name)
