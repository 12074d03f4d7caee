import dataclasses
import json
import sys

import pytest

from gradbus.access import BUFFER_USERS, CALLERS, NATS_USERS
from gradbus.deploy.credentials import Credentials
from gradbus.deploy.layout import Layout
from gradbus.deploy.secrets import OBJECT_USERS
from gradbus.embedded import StackConfig, StateFolder
from gradbus.embedded.ports import Ports
from gradbus.embedded.services import ON_DEMAND, ForkServers, StackPrograms, role_of, service_names
from gradbus.errors import StackError
from gradbus.process import ProcessSettings
from gradbus_agent.settings import AgentSettings
from gradbus_conductor.settings import Settings as ConductorSettings
from gradbus_environment.settings import EnvironmentSettings
from gradbus_gateway.settings import GatewaySettings
from gradbus_reference.settings import ReferenceSettings
from gradbus_reward.settings import RewardSettings
from gradbus_rollout.settings import Settings as RolloutSettings
from gradbus_trainer.settings import Settings as TrainerSettings
from gradbus_weight_store.settings import WeightStoreSettings

SETTINGS = {
    "conductor": ConductorSettings,
    "gateway": GatewaySettings,
    "reference": ReferenceSettings,
    "reward": RewardSettings,
    "environment": EnvironmentSettings,
    "agent": AgentSettings,
    "rollout-0": RolloutSettings,
    "trainer-0": TrainerSettings,
    "weight_store": WeightStoreSettings,
}
ADDRESSES = {
    "GRADBUS_NATS_URL": NATS_USERS,
    "GRADBUS_BUFFER_URL": BUFFER_USERS,
    "GRADBUS_OBJECTS_URL": OBJECT_USERS,
    "GRADBUS_WEIGHT_STORE": CALLERS["weight_store"],
    "GRADBUS_REWARD": CALLERS["reward"],
    "GRADBUS_REFERENCE": CALLERS["reference"],
    "GRADBUS_ENVIRONMENT_ADDRESS": CALLERS["environment"],
    "GRADBUS_AGENT": CALLERS["agent"],
}
# Addresses, names and secrets are the stack's own; on loopback the user is the operator.
DECIDED = ProcessSettings.model_fields.keys() - {"log_level", "nats_replicas", "frozen_seconds", "leftover_memory"} | {
    "weight_store",
    "reward",
    "reference",
    "environment_address",
    "agent",
    "http_listen",
}
DECIDED |= {"api_keys_file", "https_dir", "allow_loopback", "python_graders", "python_environments"}


@pytest.fixture
def programs(tmp_path):
    state = StateFolder(tmp_path)
    state.lock()
    config = StackConfig(tmp_path, 0, rollouts=2, model_roots=(tmp_path / "models",))
    made = StackPrograms(config, state, Credentials(state.secrets), Ports({}))
    yield made
    state.unlock()


def test_workers_are_numbered():
    assert service_names(2, 3)[-5:] == ["trainer-0", "trainer-1", "rollout-0", "rollout-1", "rollout-2"]


@pytest.mark.skipif(sys.platform != "linux", reason="services are forked on Linux alone")
async def test_a_service_is_forked_unless_its_modules_may_be_its_own(programs, tmp_path, monkeypatch):
    servers = ForkServers(tmp_path)
    programs = dataclasses.replace(programs, forks=servers)
    forked = {name: programs.service(name).fork for name in [*service_names(1, 2), *ON_DEMAND]}
    computing = ["trainer-0", "rollout-0", "rollout-1", "reference"]
    assert [name for name, fork in forked.items() if fork.server is servers.computing] == computing
    assert forked["trainer-0"].module == "gradbus_trainer"
    own = {"command_overrides": {"gateway": ["true"]}, "environment_overrides": {"rollout-0": {"A": "B"}}}
    changed = dataclasses.replace(programs, config=StackConfig(tmp_path, 0, rollouts=2, **own))
    assert [name for name in forked if changed.service(name).fork is None] == ["gateway", "rollout-0"]
    monkeypatch.setenv("GRADBUS_DEVICE", "cuda:0")
    assert [name for name in forked if programs.service(name).fork is None] == computing


def test_no_secret_is_in_an_argument_or_a_variable(programs):
    secrets = {path.read_text() for path in programs.state.secrets.rglob("*") if path.is_file()}
    for name in [*service_names(1, 2), "reference"]:
        program = programs.service(name)
        shown = " ".join([*program.command, *program.environment.values()])
        assert not any(secret in shown for secret in secrets), name


def test_all_services_get_the_same_address_of_each_server_that_they_use_and_of_no_other(programs):
    environments = {name: programs.service(name).environment for name in service_names(1, 2)}
    for variable in ADDRESSES:
        assert len({environment[variable] for environment in environments.values() if variable in environment}) == 1
    for name, environment in environments.items():
        users = {variable for variable, roles in ADDRESSES.items() if role_of(name) in roles}
        assert ADDRESSES.keys() & environment.keys() == users
    assert programs.service("reward").environment["GRADBUS_LISTEN"] == programs.service("conductor").environment["GRADBUS_REWARD"]


def test_each_service_has_a_name_a_health_page_and_its_own_secrets(programs):
    environments = {name: programs.service(name).environment for name in service_names(1, 2)}
    assert all(environment["GRADBUS_WORKER_ID"] == name for name, environment in environments.items())
    assert len({environment["GRADBUS_HEALTH"] for environment in environments.values()}) == len(environments)
    assert environments["rollout-0"]["GRADBUS_SECRETS_DIR"] == environments["rollout-1"]["GRADBUS_SECRETS_DIR"]
    assert environments["rollout-0"]["GRADBUS_SECRETS_DIR"] != environments["trainer-0"]["GRADBUS_SECRETS_DIR"]
    assert "GRADBUS_BUFFER_USER" not in environments["reward"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_service_is_told_what_its_operator_sets_and_the_stack_does_not_decide(programs, monkeypatch, tmp_path, name):
    programs = dataclasses.replace(programs, config=StackConfig(tmp_path, 0))
    fields = {"GRADBUS_KERNELS", *(f"GRADBUS_{field.upper()}" for field in SETTINGS[name].model_fields)}
    decided = {f"GRADBUS_{field.upper()}" for field in DECIDED}
    for variable in fields | decided:
        monkeypatch.setenv(variable, "asked for")
    environment = programs.service(name).environment
    told = {variable for variable, value in environment.items() if value == "asked for"}
    assert told == fields - decided


def test_the_gateway_alone_learns_of_api_keys_model_roots_and_the_hub(programs, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "token")
    gateway, trainer = programs.service("gateway").environment, programs.service("trainer-0").environment
    assert json.loads(gateway["GRADBUS_MODEL_ROOTS"]) == [str(tmp_path / "models")]
    assert gateway["HF_TOKEN"] == "token"
    assert not {"GRADBUS_MODEL_ROOTS", "GRADBUS_API_KEYS_FILE", "HF_TOKEN"} & trainer.keys()


def test_what_computes_learns_of_the_gpus_and_rollouts_alone_of_a_sampling_server(programs, monkeypatch):
    gpus = {"CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "WARN", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    server = {"GRADBUS_SGLANG_PYTHON": "/opt/sglang/bin/python"}
    for name, value in (gpus | server).items():
        monkeypatch.setenv(name, value)
    told = {name: programs.service(name).environment for name in ("rollout-0", "trainer-0", "reference", "reward")}
    assert [name for name, environment in told.items() if environment.items() >= gpus.items()] == ["rollout-0", "trainer-0", "reference"]
    assert [name for name, environment in told.items() if environment.items() >= server.items()] == ["rollout-0"]


def layout(trainers, rollouts, reference=("cpu",)):
    workers = {"trainers": [{"devices": one} for one in trainers], "rollouts": [{"devices": one} for one in rollouts]}
    return Layout.model_validate(workers | {"reference": {"devices": reference}})


def test_a_layout_gives_each_worker_its_devices_and_a_server_as_many(programs, tmp_path):
    chosen = layout([["cuda:0", "cuda:1"]], [["cuda:2"], ["cuda:3", "cuda:4"]], ["cuda:5"])
    programs = dataclasses.replace(programs, config=StackConfig(tmp_path, 0, rollouts=2, layout=chosen))
    names = ("trainer-0", "rollout-0", "rollout-1", "reference", "gateway")
    told = {name: programs.service(name).environment for name in names}
    assert [told[name].get("CUDA_VISIBLE_DEVICES") for name in names] == ["0,1", "2", "3,4", "5", None]
    assert [told[name].get("GRADBUS_DEVICE") for name in names] == ["cuda"] * 4 + [None]
    assert [told[name].get("GRADBUS_SGLANG_TENSOR_PARALLEL") for name in names] == [None, "1", "2", None, None]
    assert "GRADBUS_MEMORY_LIMIT" not in told["trainer-0"]


def test_a_trainer_of_several_devices_is_started_by_torchrun_on_loopback_and_has_their_memory(programs, tmp_path):
    chosen = layout([["cpu"] * 3], [["cpu"]])
    programs = dataclasses.replace(programs, config=StackConfig(tmp_path, 0, layout=chosen, memory={"trainer": 1 << 31}))
    program = programs.service("trainer-0")
    assert program.command[:7] == [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "3"]
    assert program.command[-2:] == ["-m", "gradbus_trainer"]
    assert program.command[program.command.index("--local-addr") + 1] == "127.0.0.1"
    assert (program.environment["GRADBUS_DEVICE"], program.environment["GRADBUS_MEMORY_LIMIT"]) == ("cpu", str(1 << 31))
    assert program.memory == (3 << 31) + (1 << 30), "three ranks and their launcher"
    assert programs.service("rollout-0").command == [sys.executable, "-m", "gradbus_rollout"]


def test_ranks_share_the_trainers_part_of_the_machine(tmp_path):
    one, three = (StackConfig(tmp_path, layout=layout([["cpu"] * ranks], [["cpu"]])) for ranks in (1, 3))
    assert three.memory_limit("trainer") == max(1 << 30, one.memory_limit("trainer") // 3)


def test_a_gpu_by_its_number_is_the_only_one_that_a_process_sees(programs, monkeypatch):
    monkeypatch.setenv("GRADBUS_DEVICE", "cuda:1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    programs.check()
    for name in ("rollout-0", "trainer-0", "reference"):
        environment = programs.service(name).environment
        assert (environment["GRADBUS_DEVICE"], environment["CUDA_VISIBLE_DEVICES"]) == ("cuda", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    with pytest.raises(StackError, match="cuda:1 is not here"):
        programs.check()


def test_a_service_finds_the_packages_and_libraries_that_the_stack_finds(programs, monkeypatch):
    found = {"PYTHONPATH": "/opt/packages", "LD_LIBRARY_PATH": "/opt/driver"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert programs.service("trainer-0").environment.items() >= found.items()


def test_little_is_inherited(programs, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("GRADBUS_CRASH_POINT", "mid-publish")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector")
    environment = programs.service("trainer-0").environment
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert environment["GRADBUS_CRASH_POINT"] == "mid-publish"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector"
    assert environment["OMP_NUM_THREADS"] == "1"


def test_nats_collects_garbage_before_its_heap_has_doubled(programs):
    assert int(programs.server("nats", ["nats-server"]).environment["GOGC"]) < 100
    assert "GOGC" not in programs.server("buffer", ["valkey-server"]).environment


def test_an_override_is_read_at_the_next_start(programs):
    assert programs.service("trainer-0").command == [sys.executable, "-m", "gradbus_trainer"]
    programs.config.command_overrides["trainer-0"] = ["planted"]
    programs.config.environment_overrides["trainer-0"] = {"OMP_NUM_THREADS": "2"}
    assert programs.service("trainer-0").command == ["planted"]
    assert programs.service("trainer-0").environment["OMP_NUM_THREADS"] == "2"


def test_a_service_on_demand_is_kept_on_a_cpu_and_not_on_a_gpu(programs, monkeypatch):
    monkeypatch.delenv("GRADBUS_DEVICE", raising=False)
    assert programs.kept_seconds > 0.0
    monkeypatch.setenv("GRADBUS_DEVICE", "cuda:0")
    assert programs.kept_seconds == 0.0
