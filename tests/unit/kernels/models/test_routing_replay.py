"""Replay of routes in the decoder of every family with experts."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from gradbus.errors import ModelError
from gradbus.formats.model_config import read_model_config
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus_kernels.models.causal_lm import packed_logprobs
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_kernels.models.mixture.routing import Routing
from gradbus_kernels.models.packing import OWN_CHOICE

CONFIG = {
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}
CHANGES = {
    "qwen3_moe": {"mlp_only_layers": [1], "norm_topk_prob": True},
    "mixtral": {"sliding_window": 8},
    "glm4_moe": {"n_shared_experts": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.0, "first_k_dense_replace": 1},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
}


def config_json(model_type, **changes):
    return json.dumps(CONFIG | changes | {"model_type": model_type, "architectures": [MODEL_FAMILIES[model_type].architecture]})


@dataclass
class Row:
    prompt_ids: np.ndarray
    token_ids: np.ndarray
    routes: np.ndarray | None = None

    def __len__(self):
        return len(self.prompt_ids) + len(self.token_ids)


def sampled(*lengths, prompt):
    """Rows of one prompt."""
    draw = np.random.default_rng(prompt)
    ids = draw.integers(0, 29, prompt).astype(np.int32)
    return [Row(ids, draw.integers(0, 29, length).astype(np.int32)) for length in lengths]


def test_every_family_with_experts_is_here():
    assert CHANGES.keys() == {name for name, family in MODEL_FAMILIES.items() if family.experts}


@pytest.fixture(params=CHANGES)
def model(request, tmp_path):
    (tmp_path / "config.json").write_text(config_json(request.param, **CHANGES[request.param]))
    torch.manual_seed(3)
    made = CausalLM(read_model_config(tmp_path))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    return made


@pytest.fixture
def rows():
    """A group that shares its prompt, a row that shares none, and a response of one token."""
    return [*sampled(5, 9, 1, prompt=70), *sampled(6, prompt=3)]


def chosen_by(model, row, monkeypatch):
    """The experts that the model chooses for a row alone, `[P + T, M, k]`; the last token is no input."""
    found, choose = [], Routing.__call__

    def listen(routing, *arguments):
        chosen, shares = choose(routing, *arguments)
        found.append(chosen)
        return chosen, shares

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(Routing, "__call__", listen)
        packed_logprobs(model, [row], 1.0)
    inputs = torch.stack(found, 1)[: len(row) - 1].numpy()
    return np.concatenate([inputs, np.full_like(inputs[:1], OWN_CHOICE)]).astype(np.int16)


def shifted(model, routes):
    """Other experts: each the next one."""
    return np.where(routes < 0, routes, (routes + 1) % model.config.experts.count).astype(np.int16)


def trained(model, rows):
    """Log-probabilities and gradients."""
    model.zero_grad()
    logprobs, _ = packed_logprobs(model, rows, 0.7)
    logprobs.dot(torch.linspace(-1.0, 1.0, len(logprobs))).backward()
    return logprobs.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_own_routes_give_the_bits_of_a_pass_without_replay(model, rows, monkeypatch, checkpointing):
    for row in rows:
        row.routes = chosen_by(model, row, monkeypatch)
    expected, gradients = trained(model, rows)
    model.replay_routes()
    model.set_checkpointing(checkpointing)
    found, replayed = trained(model, rows)
    assert torch.equal(found, expected)
    assert all(map(torch.equal, replayed, gradients))


def test_other_routes_change_log_probabilities_and_reach_only_their_experts(model, rows, monkeypatch):
    expected, _ = trained(model, rows)
    routes = np.resize(np.arange(model.config.experts.chosen, dtype=np.int16), (len(rows[0]), *layers_and_chosen(model)))
    for row in rows:  # every token goes to the first experts
        row.routes = np.resize(routes, (len(row), *routes.shape[1:]))
    model.replay_routes()
    found, _ = trained(model, rows)
    assert (found != expected).all()
    for mixture in mixtures(model):
        assert experts_with_gradients(mixture) == set(range(model.config.experts.chosen))
        assert getattr(mixture, model.config.experts.family.router).weight.grad.any()


def test_tokens_without_routes_are_given_their_own(model, rows, monkeypatch):
    expected, _ = trained(model, rows)
    own = [chosen_by(model, row, monkeypatch) for row in rows]
    model.replay_routes()
    assert torch.equal(trained(model, rows)[0], expected)
    for row, routes in zip(rows, own, strict=True):
        row.routes = shifted(model, routes)
        row.routes[:-4] = OWN_CHOICE  # but for the three last inputs
    changed = (trained(model, rows)[0] - expected).abs() > 1e-4  # products of other shapes round otherwise
    assert changed.tolist() == [*[False] * 2, *[True] * 3, *[False] * 6, *[True] * 3, False, *[False] * 3, *[True] * 3]


def test_a_shared_prompt_has_the_routes_of_its_first_row(model, monkeypatch):
    rows = sampled(5, 5, prompt=70)
    for row in rows:
        row.routes = shifted(model, chosen_by(model, row, monkeypatch))
    model.replay_routes()
    expected, _ = trained(model, rows)
    rows[1].routes[:70] = OWN_CHOICE
    assert torch.equal(trained(model, rows)[0], expected)
    rows[0].routes[:70] = OWN_CHOICE
    assert (trained(model, rows)[0] != expected).all()


def test_the_padding_of_a_batch_has_no_routes(model, rows, monkeypatch):
    model.replay_routes()
    for row in rows:
        row.routes = chosen_by(model, row, monkeypatch)
    batch = model.pack(rows)
    padded = batch.padded(batch.layout.tokens + 5)
    assert torch.equal(padded.routes[:-5], batch.routes)
    assert (padded.routes[-5:] == OWN_CHOICE).all()


@pytest.mark.parametrize("wrong", ["layers", "tokens", "experts"])
def test_routes_of_another_model_are_refused(model, rows, wrong):
    layers, chosen = layers_and_chosen(model)
    shape = {"layers": (len(rows[0]), layers + 1, chosen), "tokens": (len(rows[0]) - 1, layers, chosen)}
    rows[0].routes = np.full(shape.get(wrong, (len(rows[0]), layers, chosen)), model.config.experts.count - (wrong != "experts"), np.int16)
    model.replay_routes()
    with pytest.raises(ModelError, match="sample with the run's own model"):
        model.pack(rows)


def test_a_dense_model_replays_nothing(tmp_path):
    (tmp_path / "config.json").write_text(config_json("llama"))
    with pytest.raises(ModelError, match="routes are not replayed in LlamaForCausalLM"):
        CausalLM(read_model_config(tmp_path)).replay_routes()


def layers_and_chosen(model):
    return len(model.config.experts.layers), model.config.experts.chosen


def mixtures(model):
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def experts_with_gradients(mixture):
    """Numbers of the experts of which any weight has a gradient that is not zero."""
    if hasattr(mixture.experts, "down_proj"):
        return set(mixture.experts.down_proj.grad.flatten(1).any(1).nonzero().flatten().tolist())
    return {number for number, expert in enumerate(mixture.experts) if any(weight.grad.any() for weight in expert.parameters())}
