"""A model folder without weights: a tokenizer of letters, with a chat template where a test asks for it."""

import json
import string

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}a{% endif %}"
WORDS = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, "[", "]", " "]
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "max_position_embeddings": 1024}


def write_model(folder, template=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": 1}))
    (folder / "model.safetensors").touch()
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def model_folder(tmp_path):
    return write_model(tmp_path / "model")


@pytest.fixture
def chat_folder(tmp_path):
    return write_model(tmp_path / "chat", TEMPLATE)
