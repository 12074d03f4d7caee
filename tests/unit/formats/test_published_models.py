"""Models as their makers publish them are taken, with every weight accounted for; those of other families are refused by name."""

import json
import math

import pytest

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder, read_family
from gradbus.formats.model_config import read_model_config, tensor_shapes
from gradbus.formats.model_weights import check_weights
from gradbus.formats.safetensors import header

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
LLAMA |= {"attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16"}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "attention_dropout": 0.0, "use_mrope": False}
QWEN |= {"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "use_sliding_window": False, "torch_dtype": "bfloat16", "vocab_size": 151936}
QWEN3 = QWEN | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "sliding_window": None}
STRETCHED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}


def sizes(hidden, inner, layers, heads, kv_heads, context):
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip((*names, "max_position_embeddings"), (hidden, inner, layers, heads, kv_heads, context), strict=True))


PUBLISHED = {
    "Llama-3.1-8B-Instruct": (
        LLAMA
        | sizes(4096, 14336, 32, 32, 8, 131072)
        | {"vocab_size": 128256, "rope_theta": 500000.0, "rope_scaling": STRETCHED | {"factor": 8.0}, "tie_word_embeddings": False}
        | {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]},
        8_030_261_248,
    ),
    "Llama-3.2-1B": (
        LLAMA
        | sizes(2048, 8192, 16, 32, 8, 131072)
        | {"vocab_size": 128256, "head_dim": 64, "rope_theta": 500000.0, "rope_scaling": STRETCHED | {"factor": 32.0}}
        | {"tie_word_embeddings": True, "bos_token_id": 128000, "eos_token_id": 128001},
        1_235_814_400,
    ),
    "Llama-2-7b-hf": (
        LLAMA | sizes(4096, 11008, 32, 32, 32, 4096) | {"vocab_size": 32000, "rope_scaling": None, "pad_token_id": 0, "eos_token_id": 2},
        6_738_415_616,
    ),
    "TinyLlama-1.1B": (LLAMA | sizes(2048, 5632, 22, 32, 4, 2048) | {"vocab_size": 32000, "tie_word_embeddings": False}, 1_100_048_384),
    "SmolLM2-135M": (
        LLAMA
        | sizes(576, 1536, 30, 9, 3, 8192)
        | {"vocab_size": 49152, "is_llama_config": True, "rope_interleaved": False, "rope_theta": 100000, "tie_word_embeddings": True}
        | {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
        134_515_008,
    ),
    "Qwen2.5-0.5B-Instruct": (
        QWEN | sizes(896, 4864, 24, 14, 2, 32768) | {"max_window_layers": 21, "sliding_window": 32768, "tie_word_embeddings": True},
        494_032_768,
    ),
    "Qwen2.5-7B": (
        QWEN
        | sizes(3584, 18944, 28, 28, 4, 131072)
        | {"max_window_layers": 28, "sliding_window": 131072, "tie_word_embeddings": False, "vocab_size": 152064},
        7_615_616_512,
    ),
    "Qwen2.5-7B-Instruct, stretched": (
        QWEN
        | sizes(3584, 18944, 28, 28, 4, 32768)
        | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}, "vocab_size": 152064},
        7_615_616_512,
    ),
    "DeepSeek-R1-Distill-Qwen-1.5B": (
        QWEN
        | sizes(1536, 8960, 28, 12, 2, 131072)
        | {"rope_theta": 10000, "sliding_window": 4096, "max_window_layers": 21, "bos_token_id": 151643, "eos_token_id": 151643},
        1_777_088_000,
    ),
    "Qwen3-0.6B": (
        QWEN3 | sizes(1024, 3072, 28, 16, 8, 40960) | {"head_dim": 128, "max_window_layers": 28, "tie_word_embeddings": True},
        596_049_920,
    ),
    "Qwen3-4B": (
        QWEN3 | sizes(2560, 9728, 36, 32, 8, 40960) | {"head_dim": 128, "max_window_layers": 36, "tie_word_embeddings": True},
        4_022_468_096,
    ),
    "Qwen3-8B, without its head_dim": (
        QWEN3 | sizes(4096, 12288, 36, 32, 8, 40960) | {"max_window_layers": 36, "tie_word_embeddings": False},
        8_190_735_360,
    ),
    "Qwen2.5-0.5B, saved by transformers 5": (
        {name: value for name, value in QWEN.items() if name not in {"rope_theta", "torch_dtype"}}
        | sizes(896, 4864, 24, 14, 2, 32768)
        | {"dtype": "bfloat16", "layer_types": ["full_attention"] * 24, "sliding_window": None, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "max_window_layers": 21, "pad_token_id": None},
        494_032_768,
    ),
}


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "4.46.0", "use_cache": True}))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_read_with_all_of_its_weights(name, tmp_path):
    config, weights = PUBLISHED[name]
    write_config(tmp_path, config)
    assert read_family(tmp_path) == read_model_config(tmp_path).family
    assert sum(map(math.prod, tensor_shapes(read_model_config(tmp_path)).values())) == weights


@pytest.mark.parametrize(
    "architecture",
    [
        *("MixtralForCausalLM", "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration", "Qwen3MoeForCausalLM", "GptOssForCausalLM"),
        *("Qwen2MoeForCausalLM", "Qwen2_5_VLForConditionalGeneration", "LlamaForSequenceClassification", "GPT2LMHeadModel"),
    ],
)
def test_another_family_is_refused_by_its_name(architecture, tmp_path):
    write_config(tmp_path, {"architectures": [architecture], "model_type": "other", "text_config": {"hidden_size": 1}})
    with pytest.raises(ModelError, match=rf"architectures \['{architecture}'\], which are not supported; use one of Llama"):
        read_family(tmp_path)


def test_shards_with_the_tensors_that_old_folders_have_beside_them_are_taken(tmp_path):
    small = sizes(16, 32, 2, 4, 2, 64) | {"vocab_size": 40, "tie_word_embeddings": True}
    write_config(tmp_path, LLAMA | small)
    shapes = tensor_shapes(read_model_config(tmp_path)) | {"lm_head.weight": (40, 16)}
    frequencies = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": (2,) for layer in range(2)}
    shards = {"model-00001-of-00002.safetensors": (shapes, "BF16", 2), "model-00002-of-00002.safetensors": (frequencies, "F32", 4)}
    for name, (tensors, dtype, item) in shards.items():
        content = header({tensor: (dtype, shape) for tensor, shape in tensors.items()})
        (tmp_path / name).write_bytes(content + bytes(item * sum(map(math.prod, tensors.values()))))
    index = {"metadata": {"total_size": 1}, "weight_map": {tensor: name for name, (tensors, _, _) in shards.items() for tensor in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "pytorch_model.bin").touch()
    check_weights(tmp_path, read_model_config(tmp_path))
    assert check_model_folder(tmp_path).files == ("config.json", *sorted([*shards, "model.safetensors.index.json"]), "tokenizer.json")
