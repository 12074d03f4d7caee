"""Tiny models and a tokenizer, made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from family_lab import FAMILIES as ODD
from s3_servers import rclone_server  # noqa: F401 - a fixture
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.model import DecoderModel, read_supported_config
from gradbus_rollout.engines.torch.version_format import WholeVersions

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
FAMILIES = {
    "qwen2-tied-mha": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=4, tie_word_embeddings=True)),
    "qwen2-untied-gqa": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=False)),
    "llama-untied-gqa": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=False)),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=LLAMA3_ROPE)),
    "qwen3-tied-wide-heads": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=12, tie_word_embeddings=True)),
    "qwen2-yarn-rope": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2, rope_parameters=YARN_ROPE)),
    "llama-linear-rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            num_key_value_heads=4,
            tie_word_embeddings=True,
            rope_parameters=LINEAR_ROPE,
        )
    ),
}
OTHERS = sorted(
    model_type
    for model_type, family in MODEL_FAMILIES.items()
    if "embedded_engine" in family.capabilities and model_type not in {"llama", "qwen2", "qwen3"}
)


def of_family(model_type: str) -> torch.nn.Module:
    computed = {"attention_out_bias": False, "mlp_bias": False, "initializer_range": 0.2}
    if model_type == "phi3":
        computed["rope_parameters"] = None  # the factors of longrope are for the sizes of the contract
    sizes = SIZES | {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 12, "bos_token_id": 0, "pad_token_id": None}
    config = AutoConfig.for_model(model_type, **sizes | ODD[model_type] | computed)
    config._experts_implementation = "eager"  # which computes in float64 too
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


FAMILIES |= {model_type: partial(of_family, model_type) for model_type in OTHERS}


def save_tokenizer(folder: Path) -> None:
    characters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<pad>", "<eos>", "<unk>", *characters, "[", "]"]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>").save_pretrained(folder)


def make_folder(folder: Path, family: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)  # zeros would hide a bias that is never added
        if name.endswith(("q_norm.weight", "k_norm.weight")) or (family in OTHERS and name.endswith("norm.weight")):
            torch.nn.init.normal_(parameter, float(parameter.mean()), 0.3)  # ones would hide a weight in the wrong place or order
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


@pytest.fixture
def model_types() -> set[str]:
    """The `model_type` of every model here."""
    return {make().config.model_type for make in FAMILIES.values()}


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def hf_model(tmp_path, family) -> torch.nn.Module:
    return make_folder(tmp_path / "model", family)


@pytest.fixture
def model_folder(tmp_path) -> Path:
    make_folder(tmp_path / "model", "qwen2-untied-gqa")
    return tmp_path / "model"


@pytest.fixture
def decoder() -> Callable[[Path], DecoderModel]:
    def load(folder: Path) -> DecoderModel:
        model = DecoderModel(read_supported_config(folder), torch.empty(0))
        with torch.inference_mode():
            WholeVersions(model.weights).replace(load_file(folder / "model.safetensors"))
        return model

    return load


@pytest.fixture
async def start_engine(model_folder):
    """Starts engines on the model folder, holding its weights as version 0; closes them afterwards."""
    engines = []

    async def start(**config) -> TorchEngine:
        engine = TorchEngine.from_folder(model_folder, TorchEngineConfig(**config))
        engines.append(engine)
        await engine.load([model_folder / "model.safetensors"], 0)
        return engine

    yield start
    for engine in engines:
        await engine.close()
