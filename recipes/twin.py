"""The CPU twin of a recipe: its own specs and its own rows, with a random model, made-up problems and two steps.

    python recipes/twin.py maths|code|chat|tools

It shows without a GPU and a network that a recipe's spec, grader or environment and data fit together; it learns nothing.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch
from demo import STATE, console, stack
from fetch import HERE, RECIPES, write_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from training import train
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradbus.client import load_spec
from gradbus.errors import GradbusError

Json = dict[str, Any]
SPECS: Final = {"chat": ("reward_model.toml", "grpo.toml")}
"""Of a recipe, in order; the others have `run.toml`."""
TEMPLATE: Final = (
    "{%- if tools %}<|im_start|>system\n# Tools\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n"
    'For each function call, return <tool_call>\n{"name": <name>, "arguments": <args>}\n</tool_call><|im_end|>\n{% endif %}'
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- if message.tool_calls %}{% for call in message.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endif %}'
    "<|im_end|>\n{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with tools, as Qwen's models have it."""
_CONTEXT: Final = 2048
_ROWS: Final = 12


def raw_rows(recipe: str) -> Iterator[Json]:
    """Rows as the recipe's dataset has them."""
    for number in range(_ROWS):
        if recipe in ("maths", "tools"):
            yield {
                "question": f"tom has {number} apples and buys {number + 3} more. how many are there?",
                "answer": f"#### {2 * number + 3}",
            }
        elif recipe == "code":
            tests = [f"assert plus(1, {number}) == {number + 1}", f"assert plus({number}, 2) == {number + 2}"]
            yield {"text": f"add two numbers, task {number}", "test_list": tests, "test_setup_code": ""}
        else:
            answers = (f"yes, {number}", f"no, {number}")
            chosen, rejected = ([{"role": "user", "content": "?"}, {"role": "assistant", "content": text}] for text in answers)
            yield {"prompt": f"is {number} a number?", "chosen": chosen, "rejected": rejected}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and ChatML's special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make(recipe: str, folder: Path) -> None:
    """Fills `folder` as `fetch.py` does."""
    (folder / "model").mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=_CONTEXT, tie_word_embeddings=True, **sizes, **ends)
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = list(raw_rows(recipe))
    for split, part in (("train", rows[2:]), ("eval", rows[:2])):
        write_rows(recipe, part, folder / f"{split}.jsonl")


def spec_of(recipe: str, file: str, folder: Path) -> Json:
    """The recipe's spec with the changes of twins, and the files of `folder`."""
    body: Json = load_spec(HERE / recipe / file)
    for section, fields in tomllib.loads((HERE / "twin.toml").read_text()).items():
        if section in body:
            body[section] |= fields
    body["trainer"].pop("deepspeed", None)
    body.get("rollout", {}).pop("memory_fraction", None)
    body["model"]["path"] = str(folder / "model")
    body["data"] |= {split: str(folder / f"{split}.jsonl") for split in ("train", "eval")}
    return body


def run(recipe: str) -> None:
    """Runs the recipe's specs one after the other. Raises GradbusError if one does not succeed."""
    folder = STATE / "twins" / recipe
    make(recipe, folder)
    with stack() as client:
        for file in SPECS.get(recipe, ("run.toml",)):
            path = HERE / recipe / file
            console.print(f"{path.relative_to(HERE.parent)}, on a CPU")
            train(client, path, spec_of(recipe, file, folder))


def main() -> int:
    """Runs the twins that are named. Returns the exit status."""
    parser = argparse.ArgumentParser(description="The CPU twin of a recipe.")
    parser.add_argument("recipe", choices=RECIPES)
    try:
        run(parser.parse_args().recipe)
    except GradbusError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
