"""The model of the guessing game."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "guess"


@pytest.fixture(scope="session")
def game(tmp_path_factory):
    """Model and data of the guessing game."""
    spec = importlib.util.spec_from_file_location("make_guess", EXAMPLE / "make_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make(tmp_path_factory.mktemp("game"))
