"""With `batch_invariant` numerics the engine records the bits that the trainer's decoder computes."""

import dataclasses

import numpy as np
import pytest
import torch

from gradbus.errors import ModelError, SettingsError
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.invariant_decoder import invariant_packed_logprobs
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.model import read_supported_config


@dataclasses.dataclass(frozen=True)
class Tokens:
    prompt_ids: np.ndarray
    token_ids: np.ndarray


def found(folder, tokens):
    """What the trainer's decoder computes of them."""
    return invariant_packed_logprobs(load_causal_lm(folder), tokens, 0.7)[0].detach()


async def recorded(folder, **config):
    """Sequences and the log-probabilities that the engine gave them."""
    engine = TorchEngine.from_folder(folder, TorchEngineConfig(numerics="batch_invariant", stop_token_ids=frozenset({1, 2}), **config))
    await engine.load([folder / "model.safetensors"], 0)
    asked = [PromptGroup(str(n), tuple((7 * n + at) % 48 for at in range(1 + 9 * n)), (n, n + 50, n + 90)) for n in range(9)]
    groups = await engine.generate(asked)
    await engine.close()
    samples = [(group.prompt_ids, one) for group, done in zip(asked, groups, strict=True) for one in done.completions]
    tokens = [Tokens(np.array(ids, np.int32), np.array(one.token_ids, np.int32)) for ids, one in samples]
    return tokens, torch.from_numpy(np.concatenate([np.frombuffer(one.logprobs, "<f4") for _, one in samples]))


async def test_the_trainers_decoder_finds_the_same_bits(hf_model, tmp_path):
    config = read_supported_config(tmp_path / "model")
    if "batch_invariant" not in config.family.capabilities or config.invariant_lacks:
        with pytest.raises(ModelError, match="batch_invariant"):
            await recorded(tmp_path / "model")
        return
    tokens, logprobs = await recorded(tmp_path / "model", slots=5, max_new_tokens=24, temperature=0.7)
    assert len(logprobs) > 100
    assert torch.equal(found(tmp_path / "model", tokens), logprobs)


def test_every_family_that_the_engine_runs_is_among_the_models_of_these_tests(model_types):
    assert model_types == {name for name, family in MODEL_FAMILIES.items() if "embedded_engine" in family.capabilities}


async def test_so_it_does_with_two_threads_on_both_sides(model_folder):
    tokens, logprobs = await recorded(model_folder, slots=16, max_new_tokens=6, temperature=0.7, threads=2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(found(model_folder, tokens), logprobs)
    finally:
        torch.set_num_threads(before)


async def test_the_number_of_slots_changes_nothing(model_folder):
    narrow, wide = [await recorded(model_folder, slots=slots, max_new_tokens=12) for slots in (4, 70)]
    assert torch.equal(narrow[1], wide[1])


def test_a_gpu_is_refused_with_what_to_do():
    with pytest.raises(SettingsError, match='set it to cpu, or numerics = "fast"'):
        TorchEngineConfig(numerics="batch_invariant", device="cuda")
