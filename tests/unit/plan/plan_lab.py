"""Models by their config.json alone, and specs."""

import json
from pathlib import Path

from gradbus.formats.model_config import read_model_config
from gradbus.plan import ModelSize
from gradbus.spec import RunSpec

MODELS = Path(__file__).parents[3] / "recipes/models"


def stated(model):
    """What a recipe's model has in its config.json."""
    return json.loads((MODELS / model / "config.json").read_text())


SIZES = stated("qwen2.5-0.5b")


def model_config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(SIZES | fields))
    return read_model_config(folder)


def model_size(folder, **fields):
    return ModelSize.of(model_config(folder, **fields))


def run_spec(**sections):
    body = {"name": "plan", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    return RunSpec.model_validate(body | {"schedule": {"steps": 10}} | sections)
