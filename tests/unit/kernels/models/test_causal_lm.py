"""Models from folders, run packed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gradbus.errors import ModelError
from gradbus_kernels.models.causal_lm import load_causal_lm, load_weights, packed_logprobs, snapshot


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
    exported = snapshot(model.named_parameters())
    theirs = AutoModelForCausalLM.from_pretrained(any_model_folder)
    assert list(exported) == [name for name, _ in theirs.named_parameters()]
    before = exported["model.norm.weight"].clone()
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    assert torch.equal(exported["model.norm.weight"], before)
    assert all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in exported.values())


def test_loaded_weights_come_back_bit_for_bit(qwen2_folder):
    model = load_causal_lm(qwen2_folder)
    wanted = {name: torch.randn_like(tensor) for name, tensor in snapshot(model.named_parameters()).items()}
    load_weights(dict(model.named_parameters()), wanted)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in snapshot(model.named_parameters()).items())
    assert torch.equal(model.head_weight, wanted["model.embed_tokens.weight"])


def test_weights_of_another_model_are_refused(qwen2_folder):
    model = load_causal_lm(qwen2_folder)
    weights = snapshot(model.named_parameters())
    with pytest.raises(ModelError, match="has shape"):
        load_weights(dict(model.named_parameters()), weights | {"model.norm.weight": torch.zeros(3)})
    del weights["model.norm.weight"]
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        load_weights(dict(model.named_parameters()), weights)


def test_an_exported_model_loads_in_transformers_and_comes_back_bit_for_bit(any_model_folder, tmp_path):
    model = load_causal_lm(any_model_folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    weights = snapshot(model.named_parameters())
    shutil.copy(any_model_folder / "config.json", tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters())
    ours = snapshot(load_causal_lm(tmp_path).named_parameters())
    assert all(torch.equal(ours[name], tensor) and torch.equal(theirs[name], tensor) for name, tensor in weights.items())


def test_shards_are_one_model_and_dtypes_are_cast(qwen2_folder, tmp_path):
    AutoModelForCausalLM.from_pretrained(qwen2_folder, dtype=torch.bfloat16).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for dtype in (torch.float32, torch.bfloat16):
        sharded, whole = load_causal_lm(tmp_path, dtype), load_causal_lm(qwen2_folder, torch.bfloat16)
        assert {parameter.dtype for parameter in sharded.parameters()} == {dtype}
        for one, other in zip(sharded.parameters(), whole.parameters(), strict=True):
            assert torch.equal(one, other.to(dtype))
            assert one.requires_grad


def change_weights(folder, **changes):
    """Adds tensors; `__` in a keyword stands for a dot."""
    weights = load_file(folder / "model.safetensors") | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_tensors_without_a_parameter_are_skipped(qwen2_folder, tmp_path):
    folder = shutil.copytree(qwen2_folder, tmp_path / "model")
    model = load_causal_lm(folder)
    change_weights(
        folder, lm_head__weight=model.head_weight.detach().clone(), model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4)
    )
    weights = snapshot(model.named_parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in snapshot(load_causal_lm(folder).named_parameters()).items())


def break_config(folder, **changes):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


def break_index(folder, text):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "give a folder in Hugging Face layout"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: break_config(folder, model_type="bert"), "not supported; use one of .*llama.* qwen2"),
        (lambda folder: break_config(folder, hidden_size="wide"), "hidden_size = 'wide'"),
        (lambda folder: break_config(folder, tie_word_embeddings=False), r"missing from the weight files \(lm_head\.weight\)"),
        (lambda folder: break_config(folder, intermediate_size=49), r"have another shape .*mlp\.\w+\.weight"),
        (lambda folder: break_config(folder, num_hidden_layers=3, layer_types=None), r"missing from the weight files \(model\.layers\.2\."),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "cannot read the weights"),
        (lambda folder: (folder / "model.safetensors").unlink(), "save it with"),
        (lambda folder: break_index(folder, "{}"), "has no weight_map"),
        (lambda folder: break_index(folder, '{"weight_map": {"a": "../b.safetensors"}}'), "plain file name"),
        (lambda folder: break_index(folder, '{"weight_map": {"a": "b.safetensors"}}'), "which the model does not have"),
        (lambda folder: change_weights(folder, lm_head__weight=torch.ones(29, 32)), "set tie_word_embeddings to false"),
        (lambda folder: change_weights(folder, model__norm__weight=torch.ones(32, dtype=torch.int8)), "are quantised"),
        (lambda folder: change_weights(folder, model__norm__weight=torch.full((32,), torch.nan)), r"model\.norm\.weight .* not finite"),
        (lambda folder: change_weights(folder, model__norm__weight=torch.full((32,), -torch.inf)), r"model\.norm\.weight .* not finite"),
        (lambda folder: break_config(folder, num_hidden_layers=10**7), "at most 1024"),
        (lambda folder: break_config(folder, num_hidden_layers=10**400), "is not JSON"),
        (lambda folder: break_config(folder, num_hidden_layers=1000, layer_types=None), "tensors are missing from the weight files"),
        (lambda folder: break_config(folder, hidden_size=2**20), "at most 131072"),
        (lambda folder: break_config(folder, vocab_size=2**33), "at most 4194304"),
        (lambda folder: break_config(folder, vocab_size=2**80), "at most 4194304"),
        (lambda folder: break_config(folder, num_key_value_heads=-1), "a whole number above 0"),
        (lambda folder: break_config(folder, head_dim=-8), "a whole number above 0"),
        (lambda folder: break_config(folder, rms_norm_eps=float("nan")), "is not JSON"),
        (lambda folder: break_config(folder, rms_norm_eps=10**400), "is not JSON"),
        (lambda folder: break_config(folder, rope_parameters={"rope_type": "yarn", "rope_theta": 1.0, "factor": 2.0}), "rope_theta"),
        (lambda folder: break_config(folder, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 0}), "factor"),
    ],
)
def test_a_damaged_folder_is_a_model_error(qwen2_folder, tmp_path, damage, message):
    folder = shutil.copytree(qwen2_folder, tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError, match=message):
        load_causal_lm(folder)
