"""A folder of a family that transformers computes is checked without torch and transformers, by config.json and headers."""

import codecs
import json
import math
import os
from dataclasses import replace

import pytest

from gradbus.errors import ModelError
from gradbus.formats.frozen import frozen_names
from gradbus.formats.hf_model import check_model_folder, sanitized_config, transformers_family
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.model_weights import check_tied_head, check_vocabulary, read_name_plan
from gradbus.formats.safetensors import header
from gradbus.formats.transformers_families import TRANSFORMERS_FAMILIES
from gradbus.spec import LoraSpec, RolloutSpec

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 64, "vocab_size": 16, "n_layer": 1}
QWEN3_5 = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "vision_config": {},
    "text_config": {"model_type": "qwen3_5_text", "vocab_size": 32, "max_position_embeddings": 128, "tie_word_embeddings": True},
}
NEOX = GPT2 | {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}


@pytest.fixture
def write(tmp_path, write_tokenizer):
    """Writes a folder with tensors of two elements by these names, or of the dtype and shape that they map to."""

    def written(config, *names, **stored):
        (tmp_path / "config.json").write_text(json.dumps(config))
        write_tokenizer(tmp_path)
        tensors = {**dict.fromkeys(names, ("F32", (2,))), **stored}
        sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
        total = sum(sizes[dtype] * math.prod(shape) for dtype, shape in tensors.values())
        (tmp_path / "model.safetensors").write_bytes(header(tensors) + bytes(total))
        return tmp_path

    return written


def test_the_check_reads_sizes_under_the_names_of_the_family(write):
    info = check_model_folder(write(GPT2, "wte.weight"))
    assert (info.family, info.context_length, info.vocab_size) == (TRANSFORMERS_FAMILIES["gpt2"], 64, 16)
    info = check_model_folder(write(QWEN3_5, "model.language_model.norm.weight"))
    assert (info.context_length, info.vocab_size) == (128, 32)
    mamba = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "vocab_size": 16}
    assert check_model_folder(write(mamba, "backbone.norm_f.weight")).context_length == 131072


def test_an_infinity_that_older_transformers_wrote_is_read_as_newer_ones_write_it(write):
    folder = write({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": 16, "time_step_limit": [0.0, math.inf]})
    assert "Infinity]" in (folder / "config.json").read_text()
    assert check_model_folder(folder).vocab_size == 16
    text = json.loads(sanitized_config((folder / "config.json").read_bytes()))
    assert text["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba2", "vocab_size": math.nan}))
    with pytest.raises(ModelError, match="NaN is not a number of JSON"):
        check_model_folder(folder)


def test_a_configuration_that_is_a_pipe_holds_nobody(write, tmp_path):
    folder = write(GPT2, "wte.weight")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ModelError, match=r"config\.json is no file but a pipe, a device or a folder"):
        check_model_folder(folder)


def test_a_family_of_the_own_decoder_comes_first(write, monkeypatch):
    assert transformers_family(write(GPT2, "wte.weight")) == TRANSFORMERS_FAMILIES["gpt2"]
    monkeypatch.setitem(MODEL_FAMILIES, "gpt2", replace(MODEL_FAMILIES["llama"], model_type="gpt2", architecture="GPT2LMHeadModel"))
    assert transformers_family(write(GPT2, "wte.weight")) is None


def test_the_plan_leaves_out_what_no_forward_reads_and_carries_what_is_not_trained(write):
    mask = ("F32", (1, 1, 8, 8))
    folder = write(
        GPT2, "wte.weight", "h.0.attn.c_attn.bias", "lm_head.weight", **{"h.0.attn.bias": mask, "h.0.attn.masked_bias": ("F32", ())}
    )
    assert list(read_name_plan(folder).trained) == ["h.0.attn.c_attn.bias", "wte.weight"]
    assert list(read_name_plan(write(NEOX, "embed_out.weight", "gpt_neox.embed_in.weight")).trained) == [
        *("embed_out.weight", "gpt_neox.embed_in.weight"),
    ]
    names = ("mtp.fc.weight", "model.visual.patch.weight", "model.language_model.norm.weight", "lm_head.weight")
    plan = read_name_plan(write(QWEN3_5, *names))
    assert (list(plan.trained), sorted(plan.frozen)) == (
        ["model.language_model.norm.weight"],
        ["model.visual.patch.weight", "mtp.fc.weight"],
    )


@pytest.mark.parametrize(("whole", "text", "tied"), [(True, None, True), (True, False, True), (False, True, False), (None, True, True)])
def test_the_whole_model_says_whether_the_head_of_its_text_model_is_the_embedding(whole, text, tied):
    config = QWEN3_5 | {"tie_word_embeddings": whole, "text_config": QWEN3_5["text_config"] | {"tie_word_embeddings": text}}
    family = TRANSFORMERS_FAMILIES["qwen3_5"]
    assert family.is_tied(config) is tied
    assert family.text_config(config)["tie_word_embeddings"] is tied


def test_biases_of_routers_and_layers_that_predict_further_tokens_are_frozen():
    kept = {"model.layers.3.mlp.gate.weight", "model.layers.3.mlp.experts.0.up_proj.weight"}
    frozen = {"model.layers.3.mlp.gate.e_score_correction_bias", "model.layers.3.feed_forward.expert_bias"}
    frozen |= {"model.layers.4.eh_proj.weight", "model.layers.4.mlp.gate.weight"}
    frozen |= {"model.mtp_block.0.mlp.up_proj.weight", "model.mtp_emb_norm.0.weight", "model.mtp_layers.0.mlp.up_proj.weight"}
    assert frozen_names(kept | frozen) == frozen


def test_many_layers_that_predict_further_tokens_are_told_from_the_others_by_their_numbers():
    further = {f"model.layers.{layer}.{part}.weight" for layer in range(1, 100) for part in ("eh_proj", "x")}
    assert frozen_names(further | {"model.layers.0.x.weight", "model.layers.100.x.weight", "x.eh_proj.weight"}) == further


def test_a_folder_of_which_nothing_is_trained_is_refused(write):
    with pytest.raises(ModelError, match=r"the weights have 2 tensors, none of which is trained"):
        read_name_plan(write(GPT2, "mtp.wte.weight", "visual.wpe.weight"))


def test_no_family_of_our_own_decoder_is_listed():
    assert not MODEL_FAMILIES.keys() & TRANSFORMERS_FAMILIES.keys()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 10**9}, r"num_layers = 1000000000; it must be a whole number above 0 and at most 1024"),
        ({"n_layer": 0}, r"n_layer = 0; it must be a whole number above 0"),
        ({"num_nextn_predict_layers": 1025}, r"num_nextn_predict_layers = 1025; it must be .* at most 1024"),
        ({"n_routed_experts": 10**6}, r"n_routed_experts = 1000000; it must be .* at most 1024"),
        ({"zero_expert_num": 10**6}, r"zero_expert_num = 1000000; it must be .* at most 1024"),
        ({"head_dim": 1 << 24}, r"head_dim = 16777216; it must be .* at most 1024"),
        ({"chunk_size": 4096}, r"chunk_size = 4096; it must be .* at most 1024"),
        ({"hidden_size": 1 << 30}, r"hidden_size = 1073741824; it must be .* at most 16777216"),
        ({"mystery": -(1 << 40)}, r"mystery = -1099511627776; it must be .* at most 16777216"),
        ({"inner": {"deeper": {"n_layer": 10**9}}}, r"n_layer = 1000000000"),
        ({"attention_types": [[["global"], 10**9]]}, r"attention_types = 1000000000; it must be .* at most 1024"),
        ({"layers_block_type": ["mamba"] * 1025}, r"has 1025 values in layers_block_type, at most 1024 are taken"),
        ({"per_layer_config": {"0": {"_attn_implementation": "a/kernel"}}}, r"has per_layer_config, which is not computed"),
    ],
)
def test_what_transformers_would_repeat_too_often_is_refused_under_every_name(write, fields, message):
    with pytest.raises(ModelError, match=message):
        check_model_folder(write(GPT2 | fields, "wte.weight"))
    with pytest.raises(ModelError, match=message):
        check_model_folder(write(QWEN3_5 | {"text_config": QWEN3_5["text_config"] | fields}, "wte.weight"))


def test_large_numbers_that_nothing_is_repeated_by_are_taken(write):
    numbers = {"rope_theta": 10**11, "rope_parameters": {"rope_theta": 10**9}, "model_max_length": 10**30, "moe_intermediate_size": 2048}
    check_model_folder(write(GPT2 | numbers | {"shared_expert_intermediate_size": 5632, "num_labels": 10**9}, "wte.weight"))


def test_of_two_lengths_of_the_context_the_shorter_counts(write):
    assert check_model_folder(write(GPT2 | {"max_position_embeddings": 4096}, "wte.weight")).context_length == 64


def test_the_text_model_of_an_architecture_is_its_own(write):
    stated = QWEN3_5 | {"text_config": QWEN3_5["text_config"] | {"model_type": "whisper"}}
    with pytest.raises(ModelError, match=r"lacks or misstates text_config.model_type \('whisper'\)"):
        check_model_folder(write(stated, "wte.weight"))


def test_whether_the_head_is_tied_is_true_or_false(write):
    with pytest.raises(ModelError, match=r"lacks or misstates tie_word_embeddings \('no'\)"):
        read_name_plan(write(GPT2 | {"tie_word_embeddings": "no"}, "wte.weight"))


@pytest.mark.parametrize("method", ["fp8", "mxfp4", "gptq"])
def test_a_quantised_folder_is_refused_with_the_way_to_bfloat16(write, method):
    with pytest.raises(ModelError, match=rf"quantised \(quantization_config: '{method}'\).* call `dequantize\(\)`\), save it in bfloat16"):
        check_model_folder(write(GPT2 | {"quantization_config": {"quant_method": method}}, "wte.weight"))


def test_tensors_that_are_quantised_are_refused_by_their_headers(write):
    with pytest.raises(ModelError, match=r"1 tensors are quantised or no floating-point numbers \(wte.weight\)"):
        read_name_plan(write(GPT2, **{"wte.weight": ("F8_E4M3", (2,))}))


def test_code_of_the_folder_is_never_the_model(write):
    with pytest.raises(ModelError, match=r"which are not supported; the code that it names is never run; use one of Llama.*families\.md"):
        check_model_folder(write(GPT2 | {"architectures": ["Mine"], "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}, "wte.weight"))
    assert check_model_folder(write(GPT2 | {"auto_map": {"AutoModelForCausalLM": "mine.Mine"}}, "wte.weight")).family.model_type == "gpt2"


def test_a_shard_that_is_missing_is_named(write):
    folder = write(GPT2, "wte.weight")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"wte.weight": "model-1.safetensors", "wpe.weight": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names model-2\.safetensors, which the model does not have; copy the whole model"):
        check_model_folder(folder)


def test_a_text_model_needs_its_configuration(write):
    with pytest.raises(ModelError, match=r"config.json has no text_config, which Qwen3_5ForConditionalGeneration needs"):
        check_model_folder(write({name: value for name, value in QWEN3_5.items() if name != "text_config"}, "x"))
    with pytest.raises(ModelError, match=r"config.json says model_type 'gpt2' with architecture OPTForCausalLM; set model_type to 'opt'"):
        check_model_folder(write(GPT2 | {"architectures": ["OPTForCausalLM"]}, "x"))


@pytest.mark.parametrize(
    ("model_type", "config", "packed"),
    [
        ("gpt2", {}, True),
        ("exaone4", {"layer_types": ["sliding_attention", "full_attention"]}, True),
        ("exaone4", {"layer_types": ["conv", "full_attention"]}, False),
        ("mamba2", {}, False),
        ("qwen3_5", {"text_config": {}}, False),
    ],
)
def test_sequences_are_packed_only_where_every_layer_is_attention(model_type, config, packed):
    assert TRANSFORMERS_FAMILIES[model_type].is_packed(config) is packed


def test_the_engine_in_the_workers_process_and_what_needs_the_own_decoder_are_faults():
    family = TRANSFORMERS_FAMILIES["gpt2"]
    assert list(family.faults(RolloutSpec(engine="sglang"), "fast", None)) == []
    assert list(family.faults(None, "fast", None)) == []
    faults = list(family.faults(RolloutSpec(engine="torch"), "batch_invariant", LoraSpec()))
    assert [fault.path for fault in faults] == ["rollout.engine", "numerics", "trainer.lora"]
    assert "does not sample GPT2LMHeadModel" in faults[0].message
    assert '"sglang"' in faults[0].allowed
    with pytest.raises(ModelError, match=r"lora is not computed for GPT2LMHeadModel; choose a model of one of .* docs/families\.md"):
        family.require("lora")


def test_a_matrix_has_a_row_for_each_token(write):
    plan = read_name_plan(write(GPT2, **{"wte.weight": ("F32", (8, 2)), "wpe.weight": ("F32", (64, 2)), "ln_f.weight": ("F32", (16,))}))
    check_vocabulary(plan, 8)
    with pytest.raises(ModelError, match="vocab_size = 16, and no matrix of the weights has so many rows"):
        check_vocabulary(plan, 16)


def test_a_tied_head_is_one_of_the_matrices_of_its_shape(write):
    matrices = {"wte.weight": ("F32", (16, 2)), "h.0.mlp.c_fc.weight": ("F32", (16, 2)), "wpe.weight": ("F32", (64, 2))}
    assert read_name_plan(write(GPT2, **matrices)).tied_head is None
    folder = write(GPT2, **matrices, **{"lm_head.weight": ("BF16", (16, 2))})
    assert len(read_name_plan(folder).tied_head.embeddings) == 2
    check_tied_head(read_name_plan(folder))
    content = bytearray((folder / "model.safetensors").read_bytes())
    for embedding in read_name_plan(folder).tied_head.embeddings:
        content[embedding.start + 2] = 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"a head of their own but config.json ties it; set tie_word_embeddings to false"):
        check_tied_head(read_name_plan(folder))


def test_the_embedding_is_found_among_many_matrices_of_its_shape_and_few_are_read(write):
    many = {f"h.{layer}.mlp.c_fc.weight": ("F32", (16, 2)) for layer in range(1000)}
    folder = write(GPT2, **many, **{"lm_head.weight": ("F32", (16, 2)), "wte.weight": ("F32", (16, 2))})
    plan = read_name_plan(folder)
    assert plan.tied_head.embeddings[0] == plan.trained["wte.weight"]
    assert len(plan.tied_head.embeddings) < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": False}, r"has quantization_config = False; remove it"),
        *(({"architectures": named}, r"it must be a list of one name") for named in ("GPT2LMHeadModel", None, [], ["GPT2LMHeadModel"] * 2)),
    ],
)
def test_a_field_of_another_type_is_named(write, change, message):
    with pytest.raises(ModelError, match=message):
        check_model_folder(write(GPT2 | change, "wte.weight"))


def test_a_byte_order_mark_is_refused_because_transformers_does_not_read_it(write):
    folder = write(GPT2, "wte.weight")
    (folder / "config.json").write_bytes(codecs.BOM_UTF8 + (folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"config\.json begins with a byte order mark, .* save it as UTF-8 without one"):
        check_model_folder(folder)
