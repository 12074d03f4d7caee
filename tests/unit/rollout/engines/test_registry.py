"""The engine that a spec names."""

import pytest

from gradbus.errors import SettingsError
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


@pytest.mark.parametrize(
    ("placement", "share"),
    [
        ({}, 1.0),
        ({"placement": "timed"}, 1.0),
        ({"placement": "timed", "memory_fraction": 0.7}, 0.7),
        ({"placement": "shared"}, 0.4),
    ],
    ids=str,
)
async def test_the_embedded_engine_takes_its_part_of_a_shared_device(model_folder, tmp_path, monkeypatch, placement, share):
    caps = []
    monkeypatch.setattr("gradbus_kernels.models.device_memory.limit_memory_share", lambda device, share: caps.append((device, share)))
    asked = spec()
    asked = asked.model_copy(update={"rollout": asked.rollout.model_copy(update=placement)})
    engine = await EngineFactory(Settings(cache_dir=tmp_path)).open(model_folder, asked, frozenset({1}))
    await engine.close()
    assert caps == [("cpu", share)]


async def test_an_attached_server_cannot_take_turns(model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADBUS_SGLANG_URL", "http://127.0.0.1:1")
    asked = spec()
    asked = asked.model_copy(update={"rollout": asked.rollout.model_copy(update={"engine": "sglang", "placement": "timed"})})
    with pytest.raises(SettingsError, match="unset GRADBUS_SGLANG_URL"):
        await EngineFactory(Settings(cache_dir=tmp_path)).open(model_folder, asked, frozenset({1}))
