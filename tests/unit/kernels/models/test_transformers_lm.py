"""What is refused when a model that transformers computes is loaded, before anything of it is allocated; and its batches of rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
)

from gradbus.errors import ModelError
from gradbus.formats.transformers_families import TRANSFORMERS_FAMILIES
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.fallback.attention import packed_attention
from gradbus_kernels.models.fallback.configuration import text_configuration
from gradbus_kernels.models.fallback.rows import row_blocks
from gradbus_kernels.models.packing import split_by_tokens
from gradbus_kernels.operators import PrefixLayout, Softcapped, prefix_shared_attention_reference

SIZES = {"vocab_size": 32, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 1}


class Row:
    def __init__(self, prompt, response):
        self.prompt_ids, self.token_ids = np.arange(prompt, dtype=np.int32), np.arange(100, 100 + response, dtype=np.int32)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def unallocated(monkeypatch):
    """A refusal that came after the allocation of the model would be another error."""

    def allocated(*_, **__):
        raise SystemError("allocated")

    monkeypatch.setattr(torch.nn.Module, "to_empty", allocated)


def change(folder, config=(), tensors=(), without=()):
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | dict(config)))
    stored = load_file(folder / "model.safetensors") | dict(tensors)
    save_file({name: tensor for name, tensor in stored.items() if name not in without}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": ["transformer.wpe.weight"]}, r"1 tensors are missing from the weight files \(transformer.wpe.weight\)"),
        ({"tensors": {"score.weight": torch.zeros(2)}}, r"1 tensors have no place in transformers' model and are not known to be frozen"),
        ({"tensors": {"transformer.wpe.weight": torch.zeros(2, 16)}}, r"1 tensors have other shapes than config.json asks for"),
        ({"config": {"n_layer": 3}}, r"12 tensors are missing from the weight files"),
        ({"config": {"n_layer": 5000}}, r"config.json has n_layer = 5000; it must be a whole number above 0 and at most 1024"),
        ({"config": {"quantization_config": {"quant_method": "fp8"}}}, r"weights are quantised \(quantization_config: 'fp8'\)"),
        ({"config": {"n_layer": 1024}}, r"config.json asks for more weights than the 28 tensors of the folder; take files that belong"),
        ({"config": {"rope_parameters": 5}}, r"config.json is none that transformers takes \(.*; save the model again with transformers"),
        (
            {"config": {"activation_function": "evil"}},
            r"makes no model of config.json \(KeyError: 'evil'\); correct activation_function there",
        ),
        ({"config": {"n_head": 0}}, r"config.json has n_head = 0; it must be a whole number above 0"),
        ({"config": {"n_head": 3}}, r"makes no model of config.json \(ValueError: .*; correct the field there"),
        ({"config": {"vocab_size": 16}}, r"1 tensors have other shapes than config.json asks for"),
        ({"config": {"num_layers": 10**9}}, r"config.json has num_layers = 1000000000; it must be a whole number above 0 and at most 1024"),
    ],
)
def test_a_folder_that_is_not_the_model_is_refused_before_anything_is_allocated(folder, unallocated, changes, message):
    change(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_causal_lm(folder)


def test_numbers_that_are_not_finite_are_a_fault_of_the_folder(folder):
    change(folder, config={"layer_norm_epsilon": -1e30})
    with pytest.raises(
        ModelError,
        match=r"log-probabilities that are not finite, by transformers' own forward pass; correct config.json",
    ):
        load_causal_lm(folder)


def test_a_model_newer_than_the_installed_transformers_says_so(tmp_path):
    config = {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_of_tomorrow"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    family = replace(TRANSFORMERS_FAMILIES["qwen3_5"], text_type="qwen3_5_of_tomorrow")
    with pytest.raises(ModelError, match=r"does not know 'qwen3_5_of_tomorrow'; install gradbus\[families\] with a newer transformers"):
        text_configuration(tmp_path, family)


def test_names_of_layers_that_are_not_trained_take_none_from_the_model(folder):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 32}
    HeliumForCausalLM(HeliumConfig(**sizes, num_key_value_heads=2, head_dim=8)).save_pretrained(folder)
    change(folder, tensors={"model.layers.1.eh_proj.weight": torch.zeros(2)})
    with pytest.raises(ModelError, match=r"tensors are trained, and have names of what is not \(model.layers.1"):
        load_causal_lm(folder)


def test_a_lookup_never_leads_beyond_a_table_of_positions(folder):
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: value for name, value in stated.items() if name != "n_positions"}))
    change(folder, tensors={"transformer.wpe.weight": torch.zeros(1024, 16)})
    with pytest.raises(ModelError, match=r"a context of 131072 tokens, and the model has 1024 positions; state the model's own max_pos"):
        load_causal_lm(folder)


def test_more_experts_than_the_folder_stores_are_not_counted_out(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 32}
    OlmoeForCausalLM(OlmoeConfig(**sizes, num_experts=4, num_experts_per_tok=2)).save_pretrained(tmp_path)
    load_causal_lm(tmp_path)
    change(tmp_path, {"num_experts": 1024})
    with pytest.raises(ModelError, match=r"config\.json asks for more experts than the weight files have; take files that belong together"):
        load_causal_lm(tmp_path)


def test_what_transformers_asserts_is_a_fault_of_the_model(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 32}
    OlmoeForCausalLM(OlmoeConfig(**sizes, num_experts=4, num_experts_per_tok=2)).save_pretrained(tmp_path)
    change(tmp_path, {"pad_token_id": 64})
    with pytest.raises(ModelError, match=r"the model cannot be loaded \(AssertionError: Padding_idx must be within num_embeddings"):
        load_causal_lm(tmp_path)


def test_labels_of_a_classifier_and_what_changes_outputs_are_ignored(folder):
    expected = load_causal_lm(folder).state_dict()
    change(folder, {"num_labels": 10**9, "problem_type": "evil", "attribute_map": {"n_layer": "n"}, "return_dict": False})
    assert load_causal_lm(folder).state_dict().keys() == expected.keys()


def test_what_transformers_says_of_a_wrong_configuration_is_not_logged(folder, capfd):
    change(folder, {"to_dict": 1, "use_return_dict": ["a long secret"]})
    with pytest.raises(ModelError, match=r"makes no model of config\.json"):
        load_causal_lm(folder)
    assert "secret" not in "".join(capfd.readouterr())


def test_code_and_kernels_that_config_json_names_are_not_used(folder):
    change(
        folder, {"auto_map": {"AutoModelForCausalLM": "mine.Mine"}, "attn_implementation": "someone/kernel", "_attn_implementation": "x"}
    )
    assert load_causal_lm(folder).network.config._attn_implementation == "gradbus_packed"


def test_a_tied_head_that_is_stored_too_must_be_the_embedding(folder):
    table = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    change(folder, tensors={"lm_head.weight": table.clone()})
    load_causal_lm(folder)
    change(folder, tensors={"lm_head.weight": table + 1.0})
    with pytest.raises(ModelError, match=r"a head of their own but config.json ties it; set tie_word_embeddings to false"):
        load_causal_lm(folder)


def test_names_without_the_models_prefix_and_causal_masks_of_older_folders_are_taken(folder):
    expected = load_causal_lm(folder).state_dict()
    stored = {name.removeprefix("transformer."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(stored | {"h.0.attn.bias": torch.ones(1, 1, 64, 64)}, folder / "model.safetensors", {"format": "pt"})
    model = load_causal_lm(folder)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert model.stored(model.trained_parameters()).keys() == stored.keys()


def test_a_head_of_its_own_is_published_under_the_name_of_the_folder(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 32}
    GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)).save_pretrained(tmp_path)
    model = load_causal_lm(tmp_path)
    published = model.stored(model.trained_parameters())
    assert published.keys() == load_file(tmp_path / "model.safetensors").keys()
    assert published["embed_out.weight"].data_ptr() == model.head_weight.data_ptr()


def test_without_transformers_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setattr("gradbus_kernels.models.causal_lm.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel is computed by transformers, which is not installed here; install gradbus\[fam"):
        load_causal_lm(folder)


def test_a_family_that_cannot_compute_layers_again_says_so(folder):
    model = load_causal_lm(folder)
    model.network.transformer.h = torch.nn.ModuleList()
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel computes no layer again; set trainer.gradient_checkpointing = false"):
        model.set_checkpointing(True)


@pytest.mark.parametrize(
    "given", [{"position_bias": torch.zeros(2)}, {"s_aux": torch.zeros(2)}, {"layout": None}, {"attention_mask": torch.zeros(1)}]
)
def test_attention_that_is_another_function_is_refused(given):
    heads = torch.zeros(1, 2, 4, 8)
    arguments = {"attention_mask": None, "layout": PrefixLayout.of_lengths([4], [None])} | given
    with pytest.raises(ModelError, match="which is not computed over packed sequences; choose another model"):
        packed_attention(torch.nn.Module(), heads, heads, heads, **arguments)


@pytest.mark.parametrize(("given", "window"), [({}, 2), ({"sliding_window": None}, None), ({"sliding_window": 3}, 3)])
def test_a_window_that_only_the_layer_states_counts_unless_the_call_states_another(given, window):
    layer, layout = torch.nn.Module(), PrefixLayout.of_lengths([6], [None])
    layer.sliding_window = 2
    heads = torch.randn(1, 2, 6, 8)
    found, _ = packed_attention(layer, heads, heads, heads, None, layout=layout, **given)
    expected = prefix_shared_attention_reference(*(heads[0].transpose(0, 1),) * 3, layout, window=window)
    torch.testing.assert_close(found[0], expected)


def test_scores_are_bounded_also_if_their_scale_is_the_usual_one():
    heads, layout = torch.randn(1, 2, 6, 8), PrefixLayout.of_lengths([6], [None])
    found, _ = packed_attention(torch.nn.Module(), heads, heads, heads, None, layout=layout, softcap=0.5)
    expected = prefix_shared_attention_reference(*(heads[0].transpose(0, 1),) * 3, layout, Softcapped(8**-0.5, 0.5))
    torch.testing.assert_close(found[0], expected)


def test_rows_of_similar_lengths_are_blocks_and_responses_keep_their_order():
    sequences = [Row(40, 20), Row(3, 2), Row(5, 9), Row(41, 25), Row(3, 1)]
    batch = row_blocks(sequences, torch.device("cpu"))
    assert [tuple(block.shape) for block in batch.blocks] == [(3, 13), (2, 65)]
    assert batch.targets.tolist() == [token for row in sequences for token in row.token_ids.tolist()]
    tokens = torch.cat([block.flatten() for block in batch.blocks])
    inputs = [token for row in sequences for token in (row.prompt_ids[-1:].tolist() + row.token_ids.tolist())[:-1]]
    assert tokens[batch.selected].tolist() == inputs


def test_rows_that_share_no_prompt_count_theirs_each():
    sequences = [Row(50, 4), Row(50, 4), Row(50, 4)]
    assert [len(part) for part in split_by_tokens(sequences, 110)] == [3]
    assert [len(part) for part in split_by_tokens(sequences, 110, shares_prompts=False)] == [2, 1]


def test_gradients_of_a_token_are_added_up_in_float32(folder):
    table = load_causal_lm(folder, torch.bfloat16).network.get_input_embeddings()
    table(torch.zeros(1, 4096, dtype=torch.int64)).sum().backward()
    assert table.weight.grad[0].tolist() == [4096.0] * 16, "in bfloat16 the sum of ones ends at 256"


def test_a_family_has_one_row():
    architectures = [family.architecture for family in TRANSFORMERS_FAMILIES.values()]
    assert len(architectures) == len(set(architectures))
