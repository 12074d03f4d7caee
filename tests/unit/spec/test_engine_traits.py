"""Every engine that a spec may name has traits, and code outside the engines asks these instead of comparing names."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from gradbus.spec import RolloutSpec
from gradbus.spec.engine_traits import ENGINES, EngineName, engines_with

ROOT = Path(__file__).parents[3]
SERVER_ENGINES = {name for name, traits in ENGINES.items() if not traits.embedded}
MAY_NAME = (
    "services/rollout/gradbus_rollout/engines/",
    "libs/gradbus/spec/engine_traits.py",
    # Here such a server scores, and its name is a protocol's.
    "libs/gradbus/spec/reward/",
    "services/reward/gradbus_reward/protocols/",
)


def test_every_engine_of_the_spec_has_traits():
    assert set(ENGINES) == set(get_args(EngineName))
    assert all(RolloutSpec(engine=name).traits is traits for name, traits in ENGINES.items())


def test_engines_are_found_by_trait():
    assert engines_with("deterministic") == engines_with("batch_invariant") == ["torch"]
    assert engines_with("pauses") == ["sglang"]


def test_a_deterministic_engine_can_be_embedded_and_a_server_needs_a_probe():
    assert all(traits.needs_probe for traits in ENGINES.values() if not traits.embedded)
    assert all(traits.deterministic for traits in ENGINES.values() if traits.batch_invariant)


@pytest.mark.parametrize("folder", ["libs", "kernels", "services"])
def test_no_code_outside_the_engines_names_a_server_engine(folder):
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / folder).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(MAY_NAME)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in SERVER_ENGINES
    ]
    assert found == []
