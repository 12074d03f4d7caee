"""Versions of a folder that nobody has trained are the folder's model; what no run trains keeps its bits."""

import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import ModelError
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_trainer.tensors.base_folder import BaseFolder
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch

FROZEN = {
    "mtp.norm.weight": torch.full((3,), -0.0, dtype=torch.bfloat16),
    "visual.blocks.0.bias": torch.arange(5.0),
    "visual.index": torch.arange(3, dtype=torch.int8),
    "visual.nothing": torch.zeros(0, 4),
}


@pytest.fixture
def folder(model_folder, tmp_path):
    return shutil.copytree(model_folder, tmp_path / "model")


def add_tensors(folder, **changed):
    tensors = load_file(folder / "model.safetensors") | changed
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def weights_of(folder):
    return {name: parameter.detach().clone() for name, parameter in load_causal_lm(folder).named_parameters()}


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("published", [torch.float32, torch.bfloat16])
def test_a_loaded_folder_would_be_published_as_it_is(folder, stored, published):
    add_tensors(folder, **{name: tensor.to(stored) for name, tensor in load_file(folder / "model.safetensors").items()}, **FROZEN)
    BaseFolder(folder).check_identity(LazyTensors.of(weights_of(folder)), published)


def test_a_stored_head_that_is_tied_is_no_tensor_of_a_version(folder):
    weights = weights_of(folder)
    add_tensors(folder, **{"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    BaseFolder(folder).check_identity(LazyTensors.of(weights), torch.float32)
    with pytest.raises(ModelError, match=r"only in the folder or only in a version of its model \(lm_head.weight\)"):
        BaseFolder(folder).check_identity(LazyTensors.of(weights | {"lm_head.weight": torch.zeros(23, 32)}), torch.float32)


def test_one_flipped_bit_is_always_found_and_named(folder):
    draw = random.Random(0)
    for _ in range(100):
        weights = weights_of(folder)
        name = draw.choice(sorted(weights))
        bits = weights[name].view(-1).view(torch.int32)
        bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(31)
        with pytest.raises(ModelError, match=rf"1 tensors differ \({name}\).*report it with the model's config.json"):
            BaseFolder(folder).check_identity(LazyTensors.of(weights), torch.float32)


def test_two_tensors_in_each_others_place_and_a_changed_sign_of_zero_are_found(folder):
    weights = weights_of(folder)
    gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    swapped = weights | {gate: weights[up], up: weights[gate]}
    with pytest.raises(ModelError, match=r"2 tensors differ"):
        BaseFolder(folder).check_identity(LazyTensors.of(swapped), torch.bfloat16)
    bias = "model.layers.0.self_attn.q_proj.bias"
    assert not weights[bias].any()
    with pytest.raises(ModelError, match=bias):
        BaseFolder(folder).check_identity(LazyTensors.of(weights | {bias: -weights[bias]}), torch.float32)


def test_a_missing_and_an_unknown_name_are_found(folder):
    weights = weights_of(folder)
    del weights["model.norm.weight"]
    with pytest.raises(ModelError, match="2 tensors are only in the folder or only in a version of its model"):
        BaseFolder(folder).check_identity(LazyTensors.of(weights | {"model.norm.scale": torch.ones(32)}), torch.float32)


def test_frozen_tensors_keep_their_bits_in_a_file_that_the_library_reads(folder, tmp_path):
    scratch = Scratch(tmp_path / "scratch")
    assert BaseFolder(folder).write_frozen(scratch) is None
    add_tensors(folder, **FROZEN)
    file = BaseFolder(folder).write_frozen(scratch)
    found = load_file(file.path)
    assert file.names == tuple(sorted(FROZEN)) == tuple(sorted(found))
    for name, tensor in FROZEN.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8))
    again = BaseFolder(folder).write_frozen(scratch)
    assert again.path.read_bytes() == file.path.read_bytes()
