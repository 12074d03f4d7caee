"""Models from folders, run packed."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus.errors import ModelError
from gradbus.model_folder import MODEL_TYPES
from gradbus_kernels.causal_lm import FAMILIES, export_weights, load_causal_lm, load_weights, packed_logprobs


@pytest.fixture
def sequences(make_tokens):
    """Shared prompts, a lone one, several lengths, a response of one token."""
    shared = [make_tokens(7, response, 0, response) for response in (1, 3, 3, 5)]
    return [*shared, make_tokens(3, 9, 1), *(make_tokens(6, 2, 2, seed) for seed in range(3)), make_tokens(1, 1, 3)]


def one_by_one(model, sequences, temperature):
    """Log-probabilities from transformers' own forward pass, eager attention, each sequence alone."""
    logprobs, entropies = [], []
    for sequence in sequences:
        ids = torch.tensor([*sequence.prompt_ids, *sequence.token_ids])[None]
        table = (model(ids).logits[0, len(sequence.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
        logprobs.append(table.gather(1, ids[0, len(sequence.prompt_ids) :, None])[:, 0])
        entropies.append(-(table.exp() * table).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_equals_one_by_one_in_values_and_gradients(any_model_folder, sequences, temperature):
    ours = load_causal_lm(any_model_folder)
    theirs = AutoModelForCausalLM.from_pretrained(any_model_folder, attn_implementation="eager")
    results = packed_logprobs(ours, sequences, temperature), one_by_one(theirs, sequences, temperature)
    for packed, alone in zip(*results, strict=True):
        torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)
    factors = torch.linspace(-1.0, 1.0, len(results[0][0]))
    for logprobs, entropy in results:
        (logprobs.dot(factors) + entropy.dot(factors.flip(0))).backward()
    for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_exported_weights_carry_the_folders_names_and_are_a_snapshot(any_model_folder):
    model = load_causal_lm(any_model_folder)
    exported = export_weights(model)
    tied = model.config.tie_word_embeddings
    assert ("lm_head.weight" in exported) is not tied
    before = exported["model.norm.weight"].clone()
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    assert torch.equal(exported["model.norm.weight"], before)
    assert all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in exported.values())


def test_loaded_weights_come_back_bit_for_bit(qwen2_folder):
    model = load_causal_lm(qwen2_folder)
    wanted = {name: torch.randn_like(tensor) for name, tensor in export_weights(model).items()}
    load_weights(model, wanted)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in export_weights(model).items())
    assert torch.equal(model.lm_head.weight, wanted["model.embed_tokens.weight"])


def test_weights_of_another_model_are_refused(qwen2_folder):
    model = load_causal_lm(qwen2_folder)
    weights = export_weights(model)
    with pytest.raises(ModelError, match="has shape"):
        load_weights(model, weights | {"model.norm.weight": torch.zeros(3)})
    del weights["model.norm.weight"]
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        load_weights(model, weights)


def test_what_is_trained_is_what_a_submission_may_name():
    assert frozenset(MODEL_TYPES.values()) == FAMILIES


def break_config(folder, **changes):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
        (lambda folder: break_config(folder, model_type="bert"), "not supported"),
        (lambda folder: break_config(folder, model_type="mistral"), "not supported"),
        (lambda folder: break_config(folder, model_type="unheard-of"), "cannot be loaded"),
        (lambda folder: break_config(folder, hidden_size="wide"), "cannot be loaded"),
        (lambda folder: break_config(folder, tie_word_embeddings=False), r"lack lm_head\.weight"),
        (lambda folder: break_config(folder, intermediate_size=49), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
    ],
)
def test_a_damaged_folder_is_a_model_error(qwen2_folder, tmp_path, damage, message):
    folder = shutil.copytree(qwen2_folder, tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError, match=message):
        load_causal_lm(folder)
