"""The engine that a spec names."""

import pytest

from gradbus.spec import RunSpec
from gradbus_rollout.engines.registry import EngineFactory
from gradbus_rollout.settings import Settings


def spec(**trainer):
    body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    return RunSpec.model_validate(body | {"schedule": {"steps": 10}, "trainer": {"learning_rate": 1e-3} | trainer})


@pytest.mark.parametrize(
    ("trainer", "dtype"),
    [({}, "float32"), ({"dtype": "bf16"}, "bfloat16"), ({"dtype": "bf16", "lora": {}}, "float32")],
    ids=["fp32", "bf16", "bf16 adapters: rounded to bfloat16, a merged weight loses what they learn first"],
)
async def test_the_embedded_engine_decodes_in_the_trainers_dtype(model_folder, tmp_path, trainer, dtype):
    engine = await EngineFactory(Settings(cache_dir=tmp_path)).open(model_folder, spec(**trainer), frozenset({1}))
    assert engine.name.split()[-1] == dtype
    await engine.close()
