"""Adapters against the explicit product, and against peft's own."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec
from gradbus_kernels.models.causal_lm import load_causal_lm, load_weights, snapshot
from gradbus_kernels.models.lora import adapters_off, add_adapters, merged_weights
from gradbus_kernels.models.packing import pack

LORA = LoraSpec(rank=3, alpha=6.0)
ATTENTION = LoraSpec(rank=2, alpha=5.0, target_modules=("q_proj", "v_proj"))


def adapted(folder, lora=LORA, dtype=torch.float32, seed=7, move=True):
    """A model with adapters, its frozen parameters and its trained ones; `move`: B is no longer zero."""
    model = load_causal_lm(folder, dtype)
    base = dict(model.named_parameters())
    trained = add_adapters(model, lora, seed)
    torch.manual_seed(1)
    for name, parameter in trained.items():
        if move and name.endswith("lora_B.weight"):
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    return model, base, trained


def peft_name(weight, part):
    return f"base_model.model.{weight.replace('.weight', f'.lora_{part}.weight')}"


@pytest.fixture
def batch(make_tokens):
    return pack([make_tokens(4, 3), make_tokens(4, 2, seed=1), make_tokens(6, 5, prompt_seed=2)], torch.device("cpu"))


@pytest.mark.parametrize("lora", [LORA, ATTENTION], ids=["all", "attention"])
def test_forward_and_gradients_are_those_of_the_merged_weights(any_model_folder, batch, lora):
    model, base, trained = adapted(any_model_folder, lora, torch.float64)
    hidden = model(batch)
    weights = torch.sin(torch.arange(hidden.numel(), dtype=torch.float64)).view_as(hidden)
    gradients = torch.autograd.grad((hidden * weights).sum(), list(trained.values()))

    merged = dict(base)
    for name in base:
        if (up := trained.get(peft_name(name, "B"))) is not None:
            merged[name] = base[name] + lora.alpha / lora.rank * up @ trained[peft_name(name, "A")]
    assert len(merged) == len(base)
    assert sum(merged[name] is not base[name] for name in base) == 2 * len(lora.target_modules) == len(trained) / 2
    expected = functional_call(load_causal_lm(any_model_folder, torch.float64), merged, (batch,))
    torch.testing.assert_close(hidden, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * weights).sum(), list(trained.values())), rtol=1e-8, atol=1e-9)


def test_what_is_exported_computes_what_the_adapters_compute(any_model_folder, batch):
    model, base, trained = adapted(any_model_folder)
    merged = {name: weight for name, weight, _ in merged_weights(base.items(), trained, LORA.scale)}
    plain = load_causal_lm(any_model_folder)
    before = snapshot(plain.named_parameters())
    assert {name: tensor.shape for name, tensor in merged.items()} == {name: tensor.shape for name, tensor in before.items()}
    kept = {name for name, tensor in merged.items() if torch.equal(tensor, before[name])}
    assert kept == {name for name in before if not name.endswith("proj.weight")}
    load_weights(dict(plain.named_parameters()), merged)
    torch.testing.assert_close(model(batch), plain(batch), rtol=1e-4, atol=1e-5)


def test_only_adapters_are_trained(qwen2_folder, batch):
    model, base, trained = adapted(qwen2_folder)
    model(batch).sum().backward()
    assert all(parameter.grad is None for parameter in base.values())
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trained.values())
    assert trained[peft_name("model.layers.1.mlp.down_proj.weight", "A")].shape == (3, 48)
    assert trained[peft_name("model.layers.1.mlp.down_proj.weight", "B")].shape == (32, 3)


@pytest.mark.parametrize("lora", [LORA, ATTENTION], ids=["all", "attention"])
def test_the_shapes_that_follow_from_the_model_are_those_of_its_adapters(any_model_folder, lora):
    _, base, trained = adapted(any_model_folder, lora)
    shapes = adapter_shapes({name: parameter.shape for name, parameter in base.items()}, lora)
    assert shapes == {name: tuple(parameter.shape) for name, parameter in trained.items()}


def test_new_adapters_change_nothing_and_are_drawn_from_the_seed(qwen2_folder, batch):
    model, _, trained = adapted(qwen2_folder, move=False)
    assert torch.equal(model(batch), load_causal_lm(qwen2_folder)(batch))
    same, other = (adapted(qwen2_folder, seed=seed, move=False)[2] for seed in (7, 8))
    for name, parameter in trained.items():
        assert torch.equal(parameter, same[name])
        if "lora_A" in name:  # Kaiming-uniform with a = √5: within 1 / √in, and of that size
            limit = 1.0 / math.sqrt(parameter.shape[1])
            assert limit * 0.7 < parameter.abs().max() <= limit
            assert not torch.equal(parameter, other[name])
        else:
            assert not parameter.any()


def test_adapters_that_are_off_leave_the_bits_of_the_base(qwen2_folder, batch):
    model, _, _ = adapted(qwen2_folder)
    on, base = model(batch), load_causal_lm(qwen2_folder)(batch)
    with adapters_off(model):
        assert torch.equal(model(batch), base)
    assert torch.equal(model(batch), on)
    with pytest.raises(KeyError), adapters_off(model):
        raise KeyError
    assert torch.equal(model(batch), on)
    assert not torch.equal(on, base)


@pytest.mark.parametrize("lora", [LORA, ATTENTION], ids=["all", "attention"])
def test_names_shapes_and_forward_are_pefts(qwen2_folder, make_tokens, lora):
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(qwen2_folder, dtype=torch.float32), config)
    model, _, trained = adapted(qwen2_folder, lora)
    named = {name: tensor.detach() for name, tensor in trained.items()}
    stored = get_peft_model_state_dict(theirs)
    assert {name: tensor.shape for name, tensor in stored.items()} == {name: tensor.shape for name, tensor in named.items()}
    set_peft_model_state_dict(theirs, named)
    tokens = make_tokens(5, 4)
    ids = torch.tensor([[*tokens.prompt_ids, *tokens.token_ids]])
    expected = theirs.get_base_model().model(ids).last_hidden_state[0, :-1]  # the last token predicts nothing
    torch.testing.assert_close(model(pack([tokens], torch.device("cpu"))), expected, rtol=1e-5, atol=1e-5)
