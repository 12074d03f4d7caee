"""Model folders without weights: templates in the shapes of families of models, and BPE tokenizers with their control tokens."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer
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
CODER_CALLS = """
{%- for call in m.tool_calls or [] %}
    {%- if m.content or not loop.first %}{{ '\\n' }}{%- endif %}
    {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
    {%- for name, value in call.function.arguments | items %}
        {{- '<parameter=' + name + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
    {%- endfor %}
    {{- '</function>\\n</tool_call>' }}
{%- endfor %}"""
LLAMA3 = """{{- bos_token }}{%- set ns = namespace(first=true) %}
{%- for m in messages %}
    {%- if m.role == 'user' and ns.first and tools %}
        {%- set ns.first = false %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\nCall one of these functions.\\n\\n' }}
        {%- for tool in tools %}{{ tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}{{ m.content | trim + '<|eot_id|>' }}
    {%- elif m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson + '}<|eot_id|>' }}
    {%- elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content | tojson + '<|eot_id|>' }}
    {%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
GPT_OSS = """{%- set ns = namespace(called=none) %}
{{- '<|start|>system<|message|>Channels: analysis, commentary, final.<|end|>' }}
{%- if tools %}{{ '<|start|>developer<|message|>namespace functions' }}
{%- for tool in tools %}{{ '\\n' + tool.function.name + ': ' + tool.function.description }}{%- endfor %}{{ '<|end|>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- set call = m.tool_calls[0].function %}{%- set ns.called = call.name %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
        {{- call.arguments | tojson + '<|call|>' }}
    {%- elif m.role == 'assistant' %}
        {%- set ns.called = none %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
    {%- elif m.role == 'tool' %}
        {%- if ns.called is none %}{{ raise_exception('no call') }}{%- endif %}
        {{- '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}
    {%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{%- endif %}"""
TURNS_ALTERNATE = """{{- bos_token }}{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('users and assistants take turns') }}{%- endif %}
{%- if m.role == 'user' %}{{ '[INST] ' + m.content | trim + ' [/INST]' }}{%- else %}{{ ' ' + m.content + '</s>' }}{%- endif %}
{%- endfor %}"""
TEXTS = [
    "the quick brown fox jumps over the lazy dog. user assistant system tool",
    '{"name": "look_up", "arguments": {"word": "fox", "depth": 2}}\n',
    '"}\n"}}\n.\n?\n)\n\n>\n</tool_response>',
    "what is 7 + 12? 473 * 86 = 40678; 5 of 9\n\n",
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


def pieces(special, ordinary=()):
    """As Llama 2 and Mistral: a space that begins a text, and control tokens among the pieces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    letters = sorted({character for text in TEXTS for character in text.replace(" ", "▁")})
    trainer = UnigramTrainer(vocab_size=200, special_tokens=["<unk>", *special], unk_token="<unk>", initial_alphabet=letters)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_ORDINARY = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA3_SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
GPT_OSS_SPECIAL = (
    *("<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>", "<|endoftext|>"),
)
SHAPES = {
    "chatml": (CHATML, QWEN_SPECIAL, (), "<|im_end|>"),
    "qwen": (QWEN, QWEN_SPECIAL, QWEN_ORDINARY, "<|im_end|>"),
    "qwen3": (QWEN3, QWEN_SPECIAL, QWEN_ORDINARY, "<|im_end|>"),
    "qwen3_coder": (QWEN.replace(QWEN_CALLS, CODER_CALLS), QWEN_SPECIAL, QWEN_ORDINARY, "<|im_end|>"),
    "llama3": (LLAMA3, LLAMA3_SPECIAL, (), "<|eot_id|>"),
    "gpt_oss": (GPT_OSS, GPT_OSS_SPECIAL, (), "<|return|>"),
    "alternating": (TURNS_ALTERNATE, ("<s>", "</s>", "[INST]", "[/INST]"), (), "</s>"),
}
"""Template, special and other added tokens, and the token that ends a turn."""
STOPS = {"gpt_oss": ("<|call|>",), "llama3": ("<|eom_id|>",)}
ENDS = {"gpt_oss": ("<|end|>", "<|call|>")}
"""What ends a turn in the history, where that is another token."""


def write_folder(folder, shape, template=None):
    """`template` replaces that of the shape."""
    shaped, special, ordinary, end = SHAPES[shape]
    tokenizer = pieces(special) if shape == "alternating" else bpe(special, ordinary)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=special[0])
    fast.chat_template = shaped if template is None else template
    fast.save_pretrained(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "max_position_embeddings": 1 << 17}
    ids = fast.convert_tokens_to_ids([end, *STOPS.get(shape, ())])
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
        self.ends = ENDS.get(self.name, (self.end,))
        """What ends a turn in the history."""
        self.most_calls = {"llama3": 1, "gpt_oss": 1, "alternating": 0}.get(self.name, 3)

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
    return TurnSettings(**({"tools_json": json.dumps(TOOLS), "thinking": "keep"} | changed))


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


GOOD = '{"name": "mul", "arguments": {"a": 1}}'
BROKEN = [
    "",
    " ",
    "{",
    "}",
    "{}",
    "[]",
    "null",
    "1",
    "mul",
    '"mul"',
    GOOD[:-1],
    GOOD[:-2],
    GOOD[1:],
    GOOD + "}",
    GOOD + GOOD,
    GOOD + ",",
    f"[{GOOD}]",
    f"<tool_call>{GOOD}",
    "```json\n" + GOOD + "\n```",
    GOOD.replace('"', "'"),
    GOOD.replace(":", "="),
    GOOD.replace('"name"', "name"),
    GOOD.replace("mul", 'm"ul'),
    GOOD.replace('"mul"', "mul"),
    GOOD.replace('"mul"', "null"),
    GOOD.replace('"mul"', "1"),
    GOOD.replace('"mul"', '["mul"]'),
    GOOD.replace('"mul"', '{"name": "mul"}'),
    GOOD.replace('"name"', '"tool"'),
    GOOD.replace('"name"', '"Name"'),
    GOOD.replace("arguments", "parameters"),
    GOOD.replace("arguments", "args"),
    '{"name": "mul"}',
    '{"name": "mul", }',
    '{"arguments": {"a": 1}}',
    '{"name": "mul", "arguments": null}',
    '{"name": "mul", "arguments": []}',
    '{"name": "mul", "arguments": [1, 2]}',
    '{"name": "mul", "arguments": "{\\"a\\": 1}"}',
    '{"name": "mul", "arguments": 1}',
    '{"name": "mul", "arguments": true}',
    '{"name": "mul", "arguments": {1: 2}}',
    '{"name": "mul", "arguments": {"a": }}',
    '{"name": "mul", "arguments": {"a": 1,}}',
    '{"name": "mul", "arguments": {"a": 01}}',
    '{"name": "mul", "arguments": {"a": +1}}',
    '{"name": "mul", "arguments": {"a": .5}}',
    '{"name": "mul", "arguments": {"a": 1.}}',
    '{"name": "mul", "arguments": {"a": 0x1}}',
    '{"name": "mul", "arguments": {"a": NaN}}',
    '{"name": "mul", "arguments": {"a": Infinity}}',
    '{"name": "mul", "arguments": {"a": -Infinity}}',
    '{"name": "mul", "arguments": {"a": 1e999}}',
    '{"name": "mul", "arguments": {"a": ' + "9" * 5000 + "}}",
    '{"name": "mul", "arguments": {"a": ' + "[" * 2000 + "]" * 2000 + "}}",
    '{"name": "mul", "arguments": {"a": ' + "[" * 100_000 + "}}",
    '{"name": "mul", "arguments": {"a": True}}',
    '{"name": "mul", "arguments": {"a": None}}',
    '{"name": "mul", "arguments": {"a": undefined}}',
    '{"name": "mul", "arguments": {"a": "\\ud800"}}',
    '{"name": "\\udfff", "arguments": {}}',
    '{"name": "mul", "arguments": {"a": "\\x41"}}',
    '{"name": "mul", "arguments": {"a": "line\nbreak"}}',
    '{"name": "mul", "name": "mul", "arguments": {}}',
    '{"name": "mul", "arguments": {}, "arguments": {}}',
    '{"name": "mul" "arguments": {}}',
    '{"name": "mul", "arguments": {}} // done',
    "<function=mul></function>",
    "mul(1, 2)",
    "\ufeff" + GOOD,
    "\0",
]


@pytest.fixture(scope="session")
def broken_calls():
    """Gives texts that are no JSON object of a call, whose arguments are under the name given."""
    return lambda arguments: [
        text for broken in BROKEN if (text := broken.replace("arguments", arguments)) != GOOD.replace("arguments", arguments)
    ]
