"""Model folders without weights: templates in the shapes of families of models, and BPE tokenizers with their control tokens."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import TurnSettings

WORD = {"type": "object", "properties": {"word": {"type": "string"}, "depth": {"type": "integer"}}, "required": ["word"]}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
TOOLS = [
    {"name": "look_up", "description": "Looks up a word.", "parameters": WORD},
    {"name": "mul", "description": "a*b", "parameters": NUMBERS},
]
CHATML = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
QWEN_HEAD = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer within <tool_call></tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}"""
QWEN_CALLS = """
{%- for call in m.tool_calls or [] %}
    {%- if m.content or not loop.first %}{{ '\\n' }}{%- endif %}
    {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
    {{- '}\\n</tool_call>' }}
{%- endfor %}"""
QWEN_RESULT = """
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{%- endif %}"""
QWEN = (
    QWEN_HEAD
    + """{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + m.content }}"""
    + QWEN_CALLS
    + "{{ '<|im_end|>\\n' }}{%- elif m.role == 'tool' %}"
    + QWEN_RESULT
    + """{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
)
QWEN3 = (
    QWEN_HEAD
    + """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
        {%- if '</think>' in m.content and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}
        {%- else %}{{ m.content }}{%- endif %}"""
    + QWEN_CALLS
    + "{{ '<|im_end|>\\n' }}{%- elif m.role == 'tool' %}"
    + QWEN_RESULT
    + """{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""
)
TEXTS = [
    "the quick brown fox jumps over the lazy dog. user assistant system tool",
    '{"name": "look_up", "arguments": {"word": "fox", "depth": 2}}\n',
    '"}\n"}}\n.\n?\n)\n\n>\n</tool_response>',
    "what is 7 + 12? 473 * 86 = 40678\n\n",
] * 20
SPLIT = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def bpe(special, ordinary=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in ordinary])
    return tokenizer


QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_ORDINARY = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SHAPES = {
    "chatml": (CHATML, QWEN_SPECIAL, (), "<|im_end|>"),
    "qwen": (QWEN, QWEN_SPECIAL, QWEN_ORDINARY, "<|im_end|>"),
    "qwen3": (QWEN3, QWEN_SPECIAL, QWEN_ORDINARY, "<|im_end|>"),
}
"""Template, special and other added tokens, and the token that ends a turn."""


def write_folder(folder, shape, template=None, stops=()):
    """`template` replaces that of the shape, `stops` are more end tokens of the model."""
    shaped, special, ordinary, end = SHAPES[shape]
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe(special, ordinary), eos_token=end)
    fast.chat_template = shaped if template is None else template
    fast.save_pretrained(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "max_position_embeddings": 1 << 17}
    ids = fast.convert_tokens_to_ids([end, *stops])
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": ids}))
    (folder / "model.safetensors").touch()
    return folder


@dataclass
class Family:
    """A folder, and what is read from it."""

    name: str
    folder: Path

    def __post_init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.encoder = PromptEncoder(self.folder, PromptLimits(8), turns=settings())
        self.grammar = self.encoder.grammar
        self.end = SHAPES[self.name][3]
        self.end_id = self.tokenizer.convert_tokens_to_ids(self.end)

    @property
    def added(self):
        """The texts of the added tokens."""
        return [token.content for token in self.tokenizer.added_tokens_decoder.values()]

    def render(self, messages, *, generation_prompt=True):
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=generation_prompt)

    def ids(self, text):
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def settings(**changed):
    return TurnSettings(**({"tools_json": json.dumps(TOOLS)} | changed))


@pytest.fixture(scope="session")
def turn_settings():
    return settings


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory):
    """Gives the folder of a shape; with changes, a new one."""
    made = {}

    def give(shape, **changed):
        if changed:
            return write_folder(tmp_path_factory.mktemp(shape), shape, **changed)
        if shape not in made:
            made[shape] = write_folder(tmp_path_factory.mktemp(shape), shape)
        return made[shape]

    return give


@pytest.fixture(scope="session")
def families(model_folders):
    """Gives what is read from the folder of a shape."""
    made = {}

    def give(shape):
        if shape not in made:
            made[shape] = Family(shape, model_folders(shape))
        return made[shape]

    return give


@pytest.fixture(params=SHAPES, scope="session")
def family(request, families):
    return families(request.param)
