"""A model with a context for a conversation of some turns, and runs that agents play with it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

WORDS = ("sun", "moon", "star", "sky")


@pytest.fixture(scope="session")
def model(tmp_path_factory, tokenizer):
    """A folder with a context for a conversation of some turns."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    folder = tmp_path_factory.mktemp("long") / "model"
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=512, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def talk_spec(model, rows, tokenizer):
    """A run of so many steps of four groups of four."""
    prompts = rows({"prompt": [{"role": "user", "content": word}], "word": word} for word in WORDS)
    line_break = tokenizer.encode("\n", add_special_tokens=False)[-1]

    def make(steps, groups=4):
        return {
            "name": "talk",
            "model": {"path": str(model)},
            "data": {"train": prompts},
            "environment": {"agent": "pull", "max_turns": 16, "step_seconds": 60},
            "rollout": {
                "slots": 16,
                "group_size": 4,
                "max_new_tokens": 12,
                "stop_token_ids": sorted({line_break, *range(2, len(tokenizer), 2)}),
            },
            "schedule": {"groups_per_step": groups, "steps": steps},
            "checkpoint": {"every": steps},
        }

    return make
