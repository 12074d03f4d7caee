"""Models as their makers publish them are taken, with every weight accounted for; those of other families are refused by name."""

import json
import math

import pytest
from transformers import AutoConfig

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder, read_family
from gradbus.formats.model_config import read_model_config, tensor_shapes
from gradbus.formats.model_families import MODEL_FAMILIES
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


DENSE = {"hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False}


def longrope(pairs):
    """Short factors near 1 and long ones that grow, as published."""
    return {"type": "longrope", "short_factor": [1.0 + 0.02 * at for at in range(pairs)], "long_factor": [1.0 + at for at in range(pairs)]}


YARN = {"factor": 8.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 8192, "rope_type": "yarn"}
MINISTRAL_ROPE = YARN | {
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "max_position_embeddings": 262144,
    "type": "yarn",
    "rope_theta": 1e6,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
PUBLISHED |= {
    "Mistral-7B-v0.1": (
        DENSE
        | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 4096}
        | sizes(4096, 14336, 32, 32, 8, 32768)
        | {"vocab_size": 32000},
        7_241_732_096,
    ),
    "Mistral-Nemo-2407": (
        DENSE
        | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_theta": 1e6, "sliding_window": None, "head_dim": 128}
        | sizes(5120, 14336, 40, 32, 8, 1024000)
        | {"vocab_size": 131072},
        12_247_782_400,
    ),
    "Ministral-3-3B-text": (
        {**DENSE, "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "tie_word_embeddings": True}
        | sizes(3072, 9216, 26, 32, 8, 262144)
        | {"head_dim": 128, "rope_parameters": MINISTRAL_ROPE, "sliding_window": None, "vocab_size": 131072},
        3_429_006_336,
    ),
    "Mistral-Small-3.1-24B": (
        {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "tie_word_embeddings": False}
        | {"vision_config": {"model_type": "pixtral", "hidden_size": 1024, "num_hidden_layers": 24}, "vision_feature_layer": -1}
        | {
            "text_config": {"model_type": "mistral", "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e9}
            | sizes(5120, 32768, 40, 32, 8, 131072)
            | {"sliding_window": None, "vocab_size": 131072}
        },
        23_572_403_200,
    ),
    "SmolLM3-3B": (
        {**DENSE, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "mlp_bias": False, "tie_word_embeddings": True}
        | sizes(2048, 11008, 36, 16, 4, 65536)
        | {"no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "rope_theta": 5e6, "vocab_size": 128256}
        | {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 28},
        3_075_098_624,
    ),
    "Seed-OSS-36B": (
        DENSE
        | {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": True, "attention_out_bias": False}
        | sizes(5120, 27648, 64, 80, 8, 524288)
        | {"head_dim": 128, "mlp_bias": False, "rope_scaling": {"rope_type": "default"}, "rope_theta": 1e7, "vocab_size": 155136},
        36_151_104_512,
    ),
    "OLMo-2-1124-7B": (
        DENSE
        | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rope_theta": 500000, "vocab_size": 100352}
        | sizes(4096, 11008, 32, 32, 32, 4096),
        7_298_617_344,
    ),
    "Olmo-3-7B": (
        DENSE
        | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "rope_theta": 500000, "rope_scaling": YARN}
        | sizes(4096, 11008, 32, 32, 32, 65536)
        | {"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 8, "sliding_window": 4096}
        | {"vocab_size": 100278},
        7_298_011_136,
    ),
    "gemma-2-2b-it": (
        {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0}
        | sizes(2304, 9216, 26, 8, 4, 8192)
        | {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 256000, "eos_token_id": [1, 107]}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention_bias": False, "rms_norm_eps": 1e-6},
        2_614_341_888,
    ),
    "gemma-3-1b-it": (
        {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh"}
        | sizes(1152, 6912, 26, 4, 1, 32768)
        | {"head_dim": 256, "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000}
        | {"sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144, "eos_token_id": [1, 106]}
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": False, "rms_norm_eps": 1e-6},
        999_885_952,
    ),
    "Qwen3-30B-A3B": (
        DENSE
        | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "mlp_only_layers": [], "decoder_sparse_step": 1}
        | sizes(2048, 6144, 48, 32, 4, 40960)
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "max_window_layers": 48}
        | {"head_dim": 128, "rope_theta": 1e6, "vocab_size": 151936, "router_aux_loss_coef": 0.001, "use_sliding_window": False},
        30_532_122_624,
    ),
    "gpt-oss-20b": (
        DENSE
        | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "sliding_window": 128}
        | sizes(2880, 2880, 24, 64, 8, 131072)
        | {"layer_types": ["sliding_attention", "full_attention"] * 12, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4}
        | {"experts_per_token": 4, "swiglu_limit": 7.0, "rope_theta": 150000, "initial_context_length": 4096, "rms_norm_eps": 1e-5}
        | {
            "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False}
            | {"original_max_position_embeddings": 4096}
        }
        | {"vocab_size": 201088, "eos_token_id": 200002, "pad_token_id": 199999},
        20_914_757_184,
    ),
    "GLM-4.5-Air": (
        DENSE
        | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True, "use_qk_norm": False}
        | sizes(4096, 10944, 46, 96, 8, 131072)
        | {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1, "n_group": 1}
        | {"topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-5}
        | {"head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 1e6, "vocab_size": 151552, "num_nextn_predict_layers": 1},
        106_852_245_504,
    ),
    "Mixtral-8x7B-v0.1": (
        DENSE
        | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None}
        | sizes(4096, 14336, 32, 32, 8, 32768)
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6, "vocab_size": 32000},
        46_702_792_704,
    ),
    "granite-3.3-2b": (
        {**DENSE, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "mlp_bias": False, "tie_word_embeddings": True}
        | sizes(2048, 8192, 40, 32, 8, 131072)
        | {"attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22}
        | {"rope_theta": 1e7, "vocab_size": 49159},
        2_533_539_840,
    ),
    "Phi-3-mini-4k": (
        DENSE
        | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_theta": 10000.0, "sliding_window": 2047}
        | sizes(3072, 8192, 32, 32, 32, 4096)
        | {"original_max_position_embeddings": 4096, "vocab_size": 32064},
        3_821_079_552,
    ),
    "Phi-3.5-mini": (
        DENSE
        | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_theta": 10000.0, "sliding_window": 262144}
        | sizes(3072, 8192, 32, 32, 32, 131072)
        | {"original_max_position_embeddings": 4096, "rope_scaling": longrope(48), "vocab_size": 32064},
        3_821_079_552,
    ),
    "Phi-4-mini": (
        {**DENSE, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_theta": 10000.0, "sliding_window": 262144}
        | sizes(3072, 8192, 32, 24, 8, 131072)
        | {"original_max_position_embeddings": 4096, "rope_scaling": longrope(48), "vocab_size": 200064}
        | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True},
        3_836_021_760,
    ),
    "phi-4": (
        DENSE
        | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_theta": 250000, "sliding_window": None}
        | sizes(5120, 17920, 40, 40, 10, 16384)
        | {"original_max_position_embeddings": 16384, "vocab_size": 100352, "pad_token_id": 100349},
        14_659_507_200,
    ),
    "GLM-4-9B-0414": (
        DENSE
        | {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": True, "partial_rotary_factor": 0.5}
        | sizes(4096, 13696, 40, 32, 2, 32768)
        | {"head_dim": 128, "rope_theta": 10000.0, "vocab_size": 151552},
        9_400_279_040,
    ),
}
"""config.json of models as they are published, and the number of their weights."""


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "4.46.0", "use_cache": True}))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_read_with_all_of_its_weights(name, tmp_path):
    config, weights = PUBLISHED[name]
    write_config(tmp_path, config)
    assert read_family(tmp_path) == read_model_config(tmp_path).family
    assert sum(map(math.prod, tensor_shapes(read_model_config(tmp_path)).values())) == weights


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_reads_the_same_model_in_it(name, tmp_path):
    """transformers 5 writes every default and its own names of the rotary settings."""
    config, _ = PUBLISHED[name]
    write_config(tmp_path, config)
    ours = read_model_config(tmp_path)
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    again = read_model_config(tmp_path / "again")
    assert again == ours


@pytest.mark.parametrize(
    "architecture",
    [
        *(
            "ShieldGemma2ForImageClassification",
            "Gemma3ForConditionalGeneration",
            "Gemma4ForCausalLM",
            "DeepseekV32ForCausalLM",
            "BertLMHeadModel",
        ),
        *("Qwen2_5_VLForConditionalGeneration", "LlamaForSequenceClassification", "BartForCausalLM", "CodeOfTheFolder"),
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


@pytest.mark.parametrize("family", [family for family in MODEL_FAMILIES.values() if not family.text_types], ids=lambda one: one.model_type)
def test_what_a_folder_leaves_out_is_what_transformers_takes(family, tmp_path):
    stated = sizes(256, 512, 4, 4, 2, 65536) | {
        "model_type": family.model_type,
        "vocab_size": 99,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(stated))
    ours = read_model_config(tmp_path)
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert read_model_config(tmp_path / "again") == ours
