"""What the engine's thread shows while it works, and how it ends."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import ModelError
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch.model import read_supported_config
from gradbus_rollout.engines.torch.prefill import chunks
from gradbus_rollout.engines.torch.samples import rows
from gradbus_rollout.engines.torch.scheduler import Scheduler
from gradbus_rollout.engines.torch.version_format import WholeVersions
from gradbus_rollout.engines.torch.weights import ModelWeights

GROUPS = [PromptGroup(str(n), tuple(range(3, 20 + n)), (n, n + 1, n + 2)) for n in range(4)]


class Panic(BaseException):
    """As a library written in Rust raises."""


async def test_a_long_prompt_is_progress_by_chunk(start_engine):
    engine = await start_engine(slots=4, max_new_tokens=1)
    before = await engine.progress()
    await engine.generate([PromptGroup("long", tuple(range(3, 40)) * 10, (1,))])
    assert await engine.progress() - before >= len(list(chunks(370)))


async def test_uniforms_drawn_in_parts_are_those_drawn_at_once(start_engine, monkeypatch):
    at_once = await (await start_engine(slots=8, max_new_tokens=20)).generate(GROUPS)
    monkeypatch.setattr(rows, "_UNIFORMS_AT_ONCE", 1)
    assert await (await start_engine(slots=8, max_new_tokens=20)).generate(GROUPS) == at_once


async def test_a_librarys_panic_ends_every_call_with_its_cause(start_engine, monkeypatch):
    engine = await start_engine()

    def panic(_scheduler):
        raise Panic("index out of bounds")

    monkeypatch.setattr(Scheduler, "step", panic)
    with pytest.raises(ModelError, match="the engine broke: Panic: index out of bounds; see the worker's log"):
        await engine.generate(GROUPS)


async def test_an_error_while_memory_ran_out_ends_every_call_with_advice(start_engine, monkeypatch):
    engine = await start_engine()

    def fail(_scheduler):
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(Scheduler, "step", fail)
    with pytest.raises(ModelError, match="this process has too little memory"):
        await engine.generate(GROUPS)


async def test_tensors_that_a_version_carries_along_are_not_the_engines(start_engine, model_folder, tmp_path):
    engine = await start_engine()
    digest = await engine.load([model_folder / "model.safetensors"], 1)
    save_file({"visual.w": torch.ones(2), "mtp.w": torch.ones(3, dtype=torch.int8)}, tmp_path / "carried")
    assert await engine.load([model_folder / "model.safetensors", tmp_path / "carried"], 2) == digest
    save_file({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}, tmp_path / "carried")
    assert await engine.load([model_folder / "model.safetensors", tmp_path / "carried"], 3) == digest
    save_file({"other.w": torch.ones(2)}, tmp_path / "carried")
    with pytest.raises(ModelError, match="are not tensors of this model"):
        await engine.load([model_folder / "model.safetensors", tmp_path / "carried"], 3)


@pytest.mark.parametrize("family", ["qwen2-tied-mha"])
def test_a_tied_head_that_a_folder_stores_too_must_be_the_embedding(hf_model, tmp_path):
    folder, files = tmp_path / "model", [tmp_path / "model" / "model.safetensors", tmp_path / "head"]
    versions, embedding = WholeVersions(ModelWeights(read_supported_config(folder), torch.empty(0))), hf_model.lm_head.weight.detach()
    save_file({"lm_head.weight": embedding.clone()}, files[1])
    assert versions.read(files).keys() == load_file(files[0]).keys()
    save_file({"lm_head.weight": embedding + 1}, files[1])
    with pytest.raises(ModelError, match=r"are not tensors of this model \(lm_head"):
        versions.read(files)
