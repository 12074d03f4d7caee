from __future__ import annotations

import json

import pytest
import torch
from family_lab import make_model, save
from safetensors.torch import load_file, save_file

from gradbus.errors import ModelError
from gradbus.formats.frozen import CORRECTION
from gradbus.formats.hf_model import check_model_folder, checked_file_name, sanitized_config
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.model import read_supported_config


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_good_folder_tells_what_to_take(model_folder):
    (model_folder / "notes.py").write_text("print()")
    info = check_model_folder(model_folder)
    assert (info.family.architecture, info.context_length, info.vocab_size) == ("Qwen2ForCausalLM", 1024, 48)
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(info.files)
    assert "notes.py" not in info.files


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["BertLMHeadModel"]}, "use one of"),
        ({"architectures": None}, "use one of"),
        ({"model_type": "llama"}, "set model_type to 'qwen2'"),
        ({"vocab_size": True}, "vocab_size"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
    ],
)
def test_a_wrong_config_is_refused(model_folder, fields, message):
    change_config(model_folder, **fields)
    with pytest.raises(ModelError, match=message):
        check_model_folder(model_folder)


def test_a_model_that_transformers_computes_needs_a_server(model_folder):
    change_config(model_folder, architectures=["GPT2LMHeadModel"], model_type="gpt2")
    with pytest.raises(ModelError, match=r"the embedded engine does not sample GPT2LMHeadModel; set rollout.engine = \"sglang\""):
        read_supported_config(model_folder)


@pytest.mark.parametrize("config", ["", "[1]", "{", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(model_folder, config):
    (model_folder / "config.json").write_text(config)
    with pytest.raises(ModelError, match="again"):
        check_model_folder(model_folder)


def test_missing_files_are_named(model_folder, tmp_path):
    with pytest.raises(ModelError, match="cannot read"):
        check_model_folder(tmp_path / "nowhere")
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="only pickled weights"):
        check_model_folder(model_folder)
    (model_folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        check_model_folder(model_folder)


def test_auto_map_is_stripped_at_any_depth():
    config = {"a": 1, "auto_map": {"x": "evil.py"}, "text": {"auto_map": 1, "b": [{"auto_map": 2}]}}
    assert json.loads(sanitized_config(json.dumps(config).encode())) == {"a": 1, "text": {"b": [{}]}}


def test_a_large_configuration_grows_by_no_indentation():
    config = json.dumps({"a": list(range(100_000))}, separators=(",", ":")).encode()
    assert sanitized_config(config) == config


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a\\b", ".hidden", "a..b", "x\n", "a\0"])
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(ModelError, match="plain file name"):
        checked_file_name(name)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_act": "gelu"},
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": True},
        {"rope_parameters": {"rope_type": "longrope"}},
        {"hidden_size": "x"},
    ],
)
def test_what_the_engine_does_not_compute_is_refused(model_folder, fields):
    change_config(model_folder, **fields)
    with pytest.raises(ModelError, match=r"choose (a|another) model|must be a whole number"):
        read_supported_config(model_folder)


def test_a_prompt_and_its_response_fit_the_context_of_longropes_short_factors(model_folder):
    rope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    phi3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "max_position_embeddings": 512}
    change_config(model_folder, **phi3, original_max_position_embeddings=64, rope_parameters=rope)
    assert check_model_folder(model_folder).context_length == 64
    change_config(model_folder, rope_parameters={"rope_type": "default"})
    assert check_model_folder(model_folder).context_length == 512


def test_biases_of_attention_are_computed_except_with_the_trainers_bits(model_folder):
    change_config(model_folder, architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=True)
    assert read_supported_config(model_folder).biases == (True, True, False)
    with pytest.raises(ModelError, match="attention_bias, which the embedded engine does not compute with batch_invariant numerics"):
        read_supported_config(model_folder, "batch_invariant")


def test_windows_are_computed_except_with_the_trainers_bits(model_folder):
    change_config(model_folder, use_sliding_window=True, sliding_window=8, layer_types=["full_attention", "sliding_attention"])
    assert read_supported_config(model_folder).windows == (None, 8)
    with pytest.raises(ModelError, match="a sliding window, which the embedded engine does not compute with batch_invariant numerics"):
        read_supported_config(model_folder, "batch_invariant")


@pytest.mark.parametrize("open_model", [load_causal_lm, lambda folder: TorchEngine.from_folder(folder, TorchEngineConfig())])
def test_trainer_and_engine_refuse_corrections_of_routers_that_are_not_finite(open_model, tmp_path):
    folder = save(make_model("glm4_moe"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(CORRECTION))
    save_file(tensors | {name: torch.full_like(tensors[name], float("nan"))}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"tensor {name} holds values that are not finite"):
        open_model(folder)
