"""With weights in bfloat16, small models compute in float32 on a CPU; the numbers of the weights are bfloat16's in any case."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.formats.model_config import read_model_config
from gradbus_kernels.operators.linear import product_dtype
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig, config
from gradbus_rollout.engines.torch.model import DecoderModel
from gradbus_rollout.engines.torch.version_format import WholeVersions

ASKED = [PromptGroup(str(n), tuple((7 * n + at) % 48 for at in range(1 + 9 * n)), (n, n + 50)) for n in range(5)]


@pytest.fixture
def files(model_folder):
    """The model's weights in float32, and rounded to bfloat16."""
    exact, rounded = model_folder / "model.safetensors", model_folder / "rounded"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(exact).items()}, rounded)
    return exact, rounded


async def samples(folder, file, **settings):
    """The digest of what is loaded, token ids, and log-probabilities."""
    engine = TorchEngine.from_folder(folder, TorchEngineConfig(max_new_tokens=12, **settings))
    digest = await engine.load([file], 0)
    done = [one for group in await engine.generate(ASKED) for one in group.completions]
    await engine.close()
    return digest, [one.token_ids for one in done], [one.logprobs for one in done]


async def test_a_small_models_samples_are_those_of_float32_with_the_rounded_weights(model_folder, files):
    _, rounded = files
    found = await samples(model_folder, rounded, dtype="bfloat16")
    assert found == await samples(model_folder, rounded, dtype="float32")
    assert found[0] == weights_digest(load_file(rounded))


async def test_float32_weights_are_rounded_to_bfloat16_for_a_model_of_any_size(model_folder, files, monkeypatch):
    exact, rounded = files
    small = [await samples(model_folder, file, dtype="bfloat16") for file in (exact, rounded)]
    assert small[0][1:] == small[1][1:]
    assert small[0][1:] != (await samples(model_folder, exact))[1:]
    monkeypatch.setattr(config, "_WIDENED", 0)
    assert (await samples(model_folder, exact, dtype="bfloat16"))[0] == small[0][0] != weights_digest(load_file(exact))


@pytest.mark.parametrize("slots", [4, 16, 70])
async def test_samples_computed_in_bfloat16_do_not_depend_on_the_number_of_slots(model_folder, files, monkeypatch, slots):
    monkeypatch.setattr(config, "_WIDENED", 0)
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: True)
    assert await samples(model_folder, files[1], dtype="bfloat16", slots=slots) == await samples(model_folder, files[1], dtype="bfloat16")


@torch.inference_mode()
def test_bfloat16_differs_from_float32_by_rounding(hf_model, tmp_path):
    """Over two pages of keys."""
    shape, logits = read_model_config(tmp_path / "model"), []
    for dtype in (torch.float32, torch.bfloat16):
        model = DecoderModel(shape, torch.empty(0, dtype=dtype), rounded_to=torch.bfloat16)
        WholeVersions(model.weights).replace(load_file(tmp_path / "model" / "model.safetensors"))
        kept = model.new_cache(4)
        for position in range(40):
            hidden = model.forward(torch.full((4, 1), position), torch.full((4, 1), position), kept)
        logits.append(model.logits(hidden).float())
    assert 0 < (logits[0] - logits[1]).norm() < 0.15 * logits[0].norm()


@pytest.mark.parametrize("native", [True, False])
def test_wide_weights_and_other_devices_compute_in_the_dtype_of_the_weights(model_folder, monkeypatch, native):
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: native)
    small = read_model_config(model_folder)
    wide = dataclasses.replace(small, hidden_size=192, intermediate_size=544)
    settings = TorchEngineConfig(dtype="bfloat16")
    assert settings.compute_dtype(small) == torch.float32
    assert settings.compute_dtype(wide) == (torch.bfloat16 if native else torch.float32)
    assert TorchEngineConfig(dtype="bfloat16", numerics="batch_invariant").compute_dtype(wide) == torch.bfloat16
    assert TorchEngineConfig(dtype="bfloat16", device="cuda").compute_dtype(small) == torch.bfloat16
    assert TorchEngineConfig().compute_dtype(wide) == torch.float32
