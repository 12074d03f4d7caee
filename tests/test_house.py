"""What the repository promises about itself: extras, folders, imports, and nothing of the place it was written in."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from urllib.request import proxy_bypass

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVING = {
    "gateway",
    "conductor",
    "rollout",
    "reward",
    "environment",
    "agent",
    "reference",
    "trainer",
    "weight-store",
    "kernels",
    "telemetry",
}
EXTRAS = SERVING | {"embedded", "all", "dev"}
SERVICES = ("gateway", "conductor", "rollout", "reward", "environment", "agent", "reference", "trainer", "weight_store")
WITHOUT_TORCH = ("gateway", "conductor", "reward", "environment", "agent", "weight_store")
TOP_LEVEL = ("libs", "kernels", "services", "proto", "tests", "examples", "recipes", "benchmarks", "loadtests", "deploy", "docs")
# Spelled in halves, so that this file is clean itself.
FOREIGN = re.compile("|".join(["pypi" + r"\.org", "download" + r"\.pytorch\.org", "python" + "hosted", r"/wor" + r"k/(main|shared|\.)"]))
TEXT = {".py", ".toml", ".md", ".txt", ".proto", ".yaml", ".yml", ".json", ".jsonl", ".svg", ""}


def test_there_is_an_extra_for_every_service():
    assert set(PROJECT["optional-dependencies"]) >= EXTRAS


def test_the_base_needs_no_torch():
    heavy = re.compile(r"^(torch|transformers|numpy|safetensors|tokenizers)\b")
    assert [name for name in PROJECT["dependencies"] if heavy.match(name)] == []


def test_all_holds_every_service_and_no_engine_or_tool():
    inside = re.search(r"\[(.*)\]", PROJECT["optional-dependencies"]["all"][0]).group(1).split(",")
    assert set(inside) == SERVING


@pytest.mark.parametrize("folder", TOP_LEVEL)
def test_a_top_level_folder_is_no_package(folder):
    assert not (ROOT / folder / "__init__.py").exists()


def test_a_proxy_of_the_environment_gets_no_request_of_a_test():
    assert proxy_bypass("127.0.0.1")
    assert proxy_bypass("localhost")


def test_pins_are_exact():
    loose = [
        line
        for path in sorted((ROOT / "requirements").glob("*.txt"))
        for line in path.read_text().splitlines()
        if line and not line.startswith("#") and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][\w.!]*", line)
    ]
    assert loose == []


def test_the_demo_installs_what_the_tests_install():
    demo, dev = ((ROOT / f"requirements/{name}.txt").read_text().splitlines()[1:] for name in ("demo", "dev"))
    assert set(demo) <= set(dev)


def committed() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.suffix in TEXT and path.is_file()]


def test_the_repository_names_no_registry_and_no_folder_of_one_machine():
    assert [str(path.relative_to(ROOT)) for path in committed() if FOREIGN.search(path.read_text(errors="replace"))] == []


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)


IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*sorted({"torch", "transformers"} & set(sys.modules)))
"""


@pytest.mark.parametrize("service", WITHOUT_TORCH)
def test_a_service_of_the_control_plane_never_imports_torch(service):
    answer = run("-c", IMPORT_ALL, f"gradbus_{service}")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == ""


def test_the_libraries_never_import_torch():
    answer = run("-c", IMPORT_ALL, "gradbus")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == ""


IMPORT_MODELS = """
import sys
import gradbus_trainer.learners.torch, gradbus_reference.model
print(*sorted({"transformers", "torch._dynamo"} & set(sys.modules)))
"""


IMPORT_WORKER = """
import sys
import gradbus_rollout.service, gradbus_rollout.engines.torch, gradbus.tokenizer.tokenizer, gradbus.tokenizer.child
print(*sorted({"transformers", "tokenizers", "jinja2"} & set(sys.modules)))
"""


def test_a_rollout_worker_imports_no_tokenizer():
    answer = run("-c", IMPORT_WORKER)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == ""


def test_trainer_and_reference_import_neither_transformers_nor_torchs_compiler():
    answer = run("-c", IMPORT_MODELS)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == ""


LOAD_MODEL = """
import sys
from pathlib import Path
from gradbus_kernels.models.causal_lm import load_causal_lm
import gradbus_trainer.learners.torch, gradbus_trainer.tensors.base_folder, gradbus_reference.model
load_causal_lm(Path(sys.argv[1]))
print(*sorted({"transformers", "torch._dynamo"} & set(sys.modules)))
"""


def test_a_model_of_a_family_of_the_own_decoder_is_loaded_without_transformers(tmp_path, write_model):
    answer = run("-c", LOAD_MODEL, str(write_model(tmp_path / "model")))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == ""


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_installed(service):
    assert find_spec(f"gradbus_{service}") is not None
