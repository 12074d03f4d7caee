"""Experts by their definition in float64: each token alone, each of its experts in turn."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from gradbus.errors import ModelError
from gradbus.formats.frozen import CORRECTION
from gradbus.formats.model_config import correction_shapes, read_model_config, tensor_shapes
from gradbus.formats.model_weights import check_weights
from gradbus.spec import LoraSpec, RolloutSpec
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_kernels.models.mixture.routing import Routing

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
    made = MixtureOfExperts(config().experts, config(), None)
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


GLM = {
    "model_type": "glm4_moe",
    "n_routed_experts": 8,
    "num_experts": None,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 1,
    "routed_scaling_factor": 2.0,
}


@pytest.fixture
def routing(config):
    found = Routing(config(**GLM).experts)
    found.correction = torch.tensor([0.0, 0.0, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0])
    return found


def test_a_correction_decides_who_is_chosen_and_leaves_the_shares_alone(routing):
    logits = torch.tensor([[3.0, 2.0, -1.0, 0.0, 1.0, 1.0, 1.0, -9.0]], requires_grad=True)
    chosen, shares = routing(logits)
    scores = logits.sigmoid()[0, [3, 2]]
    assert chosen.tolist() == [[3, 2]]
    torch.testing.assert_close(shares[0], 2.0 * scores / scores.sum())
    assert torch.autograd.grad(shares[0, 0], logits)[0].nonzero()[:, 1].tolist() == [2, 3]


def test_experts_are_chosen_in_the_groups_whose_two_best_add_up_to_most(routing):
    routing.correction = torch.zeros(8)
    logits = torch.tensor([[3.0, -9.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0]])  # the best expert is in another group
    assert sorted(routing(logits)[0].tolist()[0]) == [2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 3}, "2 of 8 experts in 1 of 3 groups, which cannot be chosen"),
        ({"n_group": 8}, "which cannot be chosen"),
        ({"num_experts_per_tok": 3}, "3 of 8 experts in 1 of 4 groups"),
        ({"topk_group": 5}, "topk_group = 5"),
        ({"n_shared_experts": 0}, "n_shared_experts = 0"),
        ({"first_k_dense_replace": -1}, "misstates first_k_dense_replace"),
        ({"routed_scaling_factor": 0}, "misstates routed_scaling_factor"),
    ],
)
def test_groups_that_cannot_be_are_refused(config, changes, message):
    with pytest.raises(ModelError, match=message):
        config(**GLM | changes)


def test_the_first_layers_have_no_experts(config):
    found = config(**GLM | {"first_k_dense_replace": 2})
    assert [found.experts_of(layer) is not None for layer in range(3)] == [False, False, True]


@pytest.fixture
def glm_folder(config, tmp_path):
    """A folder with a layer that predicts further tokens after the decoder's three."""
    shapes = tensor_shapes(config(**GLM)) | correction_shapes(config(**GLM))
    further = ("eh_proj.weight", "enorm.weight", "self_attn.q_proj.weight", "mlp.gate.weight", f"mlp.gate.{CORRECTION}")
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()} | {f"model.layers.3.{name}": torch.ones(3) for name in further}
    save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def test_a_layer_that_predicts_further_tokens_and_corrections_are_frozen(config, glm_folder, tmp_path):
    plan = check_weights(tmp_path, config(**GLM))
    assert {name for name in plan.frozen if not name.startswith("model.layers.3.")} == {
        f"model.layers.{layer}.mlp.gate.{CORRECTION}" for layer in (1, 2)
    }
    assert sum(name.startswith("model.layers.3.") for name in plan.frozen) == 5
    assert plan.trained.keys() == tensor_shapes(config(**GLM)).keys()


def test_corrections_keep_their_bits_in_a_model_of_bfloat16(glm_folder, tmp_path):
    layers = load_causal_lm(tmp_path, torch.bfloat16).model.layers
    for number in (1, 2):
        assert torch.equal(layers[number].mlp.routing.correction, glm_folder[f"model.layers.{number}.mlp.gate.{CORRECTION}"])


def test_a_folder_without_corrections_is_refused(config, glm_folder, tmp_path):
    save_file({name: tensor for name, tensor in glm_folder.items() if not name.endswith(CORRECTION)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"2 tensors are missing .*model\.layers\.1\.mlp\.gate\.{CORRECTION}"):
        load_causal_lm(tmp_path)


GPT_OSS = {
    "model_type": "gpt_oss",
    "num_local_experts": 5,
    "num_experts": None,
    "intermediate_size": 6,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "swiglu_limit": 0.7,
}


@pytest.fixture
def fused(config):
    torch.manual_seed(0)
    made = MixtureOfExperts(config(**GPT_OSS).experts, config(**GPT_OSS), None)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    return made


def defined_fused(mixture, hidden):
    """The output of fused experts by its definition, float64."""
    whole = {name: parameter.double() for name, parameter in mixture.experts.named_parameters()}
    found = []
    for token in hidden.double():
        logits, chosen = functional.linear(token, mixture.router.weight.double(), mixture.router.bias.double()).topk(2)
        total = torch.zeros_like(token)
        for share, expert in zip(logits.softmax(-1), chosen.tolist(), strict=True):
            both = token @ whole["gate_up_proj"][expert] + whole["gate_up_proj_bias"][expert]
            gate, up = both[::2].clamp(max=0.7), both[1::2].clamp(-0.7, 0.7)
            gated = (up + 1) * gate * torch.sigmoid(1.702 * gate)
            total = total + share * (gated @ whole["down_proj"][expert] + whole["down_proj_bias"][expert])
        found.append(total)
    return torch.stack(found)


@pytest.mark.parametrize("tokens", [1, 33])
def test_fused_experts_are_those_of_the_definition(fused, tokens):
    hidden = torch.randn(tokens, 16, requires_grad=True)
    found, expected = fused(hidden), defined_fused(fused, hidden)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    for ours, exact in zip(gradients(found, fused, hidden), gradients(expected, fused, hidden), strict=True):
        torch.testing.assert_close(ours, exact, atol=2e-5, rtol=1e-5, check_dtype=False)


def test_no_view_of_fused_weights_lives_until_the_backward_pass(fused):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        fused(torch.randn(9, 16, requires_grad=True)).sum()
    whole = {parameter.untyped_storage().data_ptr(): parameter for parameter in fused.experts.parameters()}
    kept = [tensor for tensor in saved if tensor.untyped_storage().data_ptr() in whole]
    assert len(kept) == 2
    assert all(tensor is whole[tensor.untyped_storage().data_ptr()] for tensor in kept)


def test_a_clamp_of_nothing_is_refused(config):
    with pytest.raises(ModelError, match="misstates swiglu_limit"):
        config(**GPT_OSS | {"swiglu_limit": 0.0})
