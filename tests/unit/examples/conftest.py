"""The examples are scripts, not packages: they are loaded by path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def loaded(path: Path) -> ModuleType:
    name = "example_" + "_".join(path.relative_to(EXAMPLES).with_suffix("").parts)
    if name not in sys.modules:
        specification = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def examples():
    return EXAMPLES


@pytest.fixture(scope="session")
def addition():
    return loaded(EXAMPLES / "addition/make_model.py")


@pytest.fixture(scope="session")
def copying():
    return loaded(EXAMPLES / "copy/make_model.py")


@pytest.fixture(scope="session")
def chat():
    return loaded(EXAMPLES / "chat/make_model.py")


@pytest.fixture(scope="session")
def calculator():
    return loaded(EXAMPLES / "calculator/make_model.py")


@pytest.fixture(scope="session")
def ledger_pages():
    return loaded(EXAMPLES / "ledger/make_model.py")


@pytest.fixture(scope="session")
def ledger_server():
    return loaded(EXAMPLES / "ledger/server.py")


@pytest.fixture(scope="session")
def reward_server():
    return loaded(EXAMPLES / "chat/reward_server.py")


@pytest.fixture(scope="session")
def tiny_models(addition):
    return sys.modules["tiny_models"]


@pytest.fixture(scope="session")
def trl_drop_in():
    return loaded(EXAMPLES / "trl_drop_in.py")
