"""The models of the guessing game and of the ledger, and a run of the latter."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def loaded(example, name):
    """A module of an example."""
    spec = importlib.util.spec_from_file_location(f"{name}_of_{example}", EXAMPLES / example / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def game(tmp_path_factory):
    """Model and data of the guessing game."""
    return loaded("guess", "make_model").make(tmp_path_factory.mktemp("game"))


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Model and data of the ledger."""
    return loaded("ledger", "make_model").make(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="session")
def looking_up(pages):
    """Makes a short run of the ledger, with a scorer beside the environment."""
    scorer = "def grade(sample, item):\n    return 0.01 * len(sample['output_text'])\n"

    def make(steps):
        return {
            "name": "ledger",
            "model": {"path": str(pages / "model")},
            "data": {"train": str(pages / "train.jsonl"), "eval": str(pages / "eval.jsonl")},
            "environment": {"source": (EXAMPLES / "ledger" / "environment.py").read_text(), "max_turns": 3},
            "reward": {"grader": {"type": "python", "source": scorer}},
            "rollout": {"slots": 16, "group_size": 4, "max_new_tokens": 2, "stop_token_ids": list(range(3, 23))},
            "schedule": {"groups_per_step": 8, "steps": steps},
            "checkpoint": {"every": 4, "keep": 100},
            "evaluation": {"every": steps, "samples": 16, "metric": "exact"},
        }

    return make
