"""Experts by their definition in float64: each token alone, each of its experts in turn."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from gradbus.errors import ModelError
from gradbus.formats.model_config import read_model_config, tensor_shapes
from gradbus.formats.model_weights import check_weights
from gradbus.spec import LoraSpec, RolloutSpec
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.experts import MixtureOfExperts

CONFIG = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "norm_topk_prob": True,
}


@pytest.fixture
def config(tmp_path):
    def read(**changes):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
        return read_model_config(tmp_path)

    return read


@pytest.fixture
def mixture(config):
    torch.manual_seed(0)
    made = MixtureOfExperts(config().experts, config())
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    return made


def defined(mixture, hidden):
    """The output by its definition, float64."""
    found = []
    for token in hidden.double():
        scores = functional.linear(token, mixture.gate.weight.double()).softmax(-1)
        shares, chosen = scores.topk(2)
        total = torch.zeros_like(token)
        for share, expert in zip(shares / shares.sum(), chosen.tolist(), strict=True):
            gate, up, down = (getattr(mixture.experts[expert], name).weight.double() for name in ("gate_proj", "up_proj", "down_proj"))
            total = total + share * (down @ (functional.silu(gate @ token) * (up @ token)))
        found.append(total)
    return torch.stack(found)


def gradients(output, mixture, hidden):
    factors = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).view(output.shape)
    return torch.autograd.grad((output * factors).sum(), [hidden, *mixture.parameters()], allow_unused=True)


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_outputs_and_gradients_are_those_of_the_definition(mixture, tokens):
    hidden = torch.randn(tokens, 16, requires_grad=True)
    found, expected = mixture(hidden), defined(mixture, hidden)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    for ours, exact in zip(gradients(found, mixture, hidden), gradients(expected, mixture, hidden), strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if exact is None else exact, atol=2e-5, rtol=1e-5)


def test_an_expert_without_tokens_has_a_gradient_of_zeros(mixture):
    mixture(torch.randn(1, 16)).sum().backward()
    untouched = [expert for expert in mixture.experts if not expert.up_proj.weight.grad.any()]
    assert len(untouched) == 4
    assert all(parameter.grad is not None for expert in untouched for parameter in expert.parameters())


def test_equal_calls_give_equal_bits_and_the_order_of_tokens_changes_no_gradient_of_theirs(mixture):
    hidden = torch.randn(40, 16, requires_grad=True)
    order = torch.randperm(40)
    (first,), (again,) = (torch.autograd.grad(mixture(hidden).square().sum(), hidden) for _ in range(2))
    (turned,) = torch.autograd.grad(mixture(hidden[order]).square().sum(), hidden)
    assert torch.equal(first, again)
    torch.testing.assert_close(turned, first, atol=1e-5, rtol=1e-5)


def test_in_bfloat16_the_shares_are_added_up_in_float32(mixture):
    hidden = torch.randn(50, 16).bfloat16()
    expected, found = defined(mixture.bfloat16(), hidden), mixture(hidden)
    error = (found.double() - expected).abs()
    assert found.dtype == torch.bfloat16
    assert float(error.mean() / expected.abs().mean()) < 0.01


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({}, {0, 1, 2}),
        ({"mlp_only_layers": [0, 2]}, {1}),
        ({"decoder_sparse_step": 2}, {1}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, set()),
    ],
)
def test_config_json_says_which_layers_have_experts(config, changes, sparse):
    found = config(**changes)
    assert {layer for layer in range(3) if found.experts_of(layer)} == sparse
    with torch.device("meta"):
        layers = CausalLM(found).model.layers
    assert {number for number, layer in enumerate(layers) if isinstance(layer.mlp, MixtureOfExperts)} == sparse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 7}, "num_experts_per_tok = 7; it must be a whole number above 0 and at most 6"),
        ({"num_local_experts": 1 << 20}, "num_local_experts = 1048576"),
        ({"num_experts": 1024, "num_hidden_layers": 100}, "1024 experts in 100 layers, more than are taken; choose a smaller model"),
        ({"mlp_only_layers": 3}, "misstates mlp_only_layers"),
        ({"mlp_only_layers": ["0"]}, "misstates mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        ({"norm_topk_prob": 1}, "misstates norm_topk_prob"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size = 0"),
        ({"use_sliding_window": True}, "use_sliding_window = True, which is not computed"),
    ],
)
def test_experts_that_cannot_be_are_refused(config, changes, message):
    with pytest.raises(ModelError, match=message):
        config(**changes)


def test_a_folder_with_fused_experts_is_refused_by_its_names(config, tmp_path):
    shapes = tensor_shapes(config())
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items() if ".experts." not in name}
    save_file(tensors | {"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(6, 24, 16)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.experts\.0\.down_proj\.weight"):
        check_weights(tmp_path, config())


def test_adapters_may_be_beside_attention_alone(config):
    family = config().family
    asked = LoraSpec(target_modules=("q_proj", "gate_proj"))
    (fault,) = family.faults(RolloutSpec(engine="torch"), "fast", asked)
    assert (fault.path, fault.given) == ("trainer.lora.target_modules", "gate_proj")
    assert "adapters are trained beside attention only" in fault.message
    assert fault.allowed == ", ".join(family.adapted_layers)
