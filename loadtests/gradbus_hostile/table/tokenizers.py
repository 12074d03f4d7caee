"""Chat templates, tokenizers and generation configs."""

from __future__ import annotations

from typing import Any, Final

from gradbus_hostile.damage import fields, nested, text, tokenizer
from gradbus_hostile.material import chat, good_chats, good_rows, row
from gradbus_hostile.table.submission import ANY, FAILED, HARMLESS, model, template

_LOOPS: Final = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
_ONE_MEGABYTE: Final = "{{ 'a ' * (500000 if messages[0].content == 'large' else 1) }}"
_LATE: Final = 300
"""A row behind those that the gateway encodes."""

TEMPLATES: Final = (
    template("a division by zero", "{{ 1 / 0 }}"),
    template("a macro that calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    template("an include", "{% include '/etc/passwd' %}"),
    template("three nested loops", _LOOPS),
    template("a text of ten gigabytes", "{{ 'a' * 10000000000 }}"),
    template("a text that doubles", "{% set ns = namespace(t='ab') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}"),
    template("a way out of the sandbox", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    template("another way out of the sandbox", "{{ cycler.__init__.__globals__.os.system('true') }}"),
    template("broken syntax", "{% if %}"),
    template("no output", ""),
    template("a number that takes for ever", "{{ 9 ** (9 ** 9) }}"),
    template("an undefined method", "{{ messages.nothing() }}"),
    template("its own refusal", "{{ raise_exception('no') }}"),
    template("its own refusal in half a surrogate pair", "{{ raise_exception('\\ud800') }}"),
    template("a list that doubles", "{% set x = [1] %}" + "{% set x = x + x %}" * 60 + "{{ x | length }}"),
    template("a text that is padded", "{{ '{0:>999999999}'.format('a') }}"),
    template("a lone surrogate", "{{ '\\ud800' }}{{ messages[0].content }}", ANY),
    template("a megabyte for one row", _ONE_MEGABYTE, lines=[*good_chats(), chat("large")]),
    template("a megabyte for a late row", _ONE_MEGABYTE, FAILED, lines=[*good_chats(_LATE), chat("large")]),
    template("no text for a late row", "{{ messages[0].content }}", FAILED, lines=[*good_chats(_LATE), chat("")]),
    template("a text that changes with every call", "{{ range(9) | random }} {{ messages[0].content }}", ANY),
    template("a text of two directions and no width", "\u202e\u200b\u2066{{ messages[0].content }}\ufeff\x00", ANY),
    template("a thousand filters", "{{ messages[0].content" + "| upper | lower" * 500 + " }}", ANY),
    template("brackets inside each other", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"),
)

_SLOW_PATTERN: Final = {"type": "Split", "pattern": {"Regex": "(a|aa|s|su|sun|.)+x$"}, "behavior": "Isolated", "invert": False}
_GROWS: Final = {"type": "Replace", "pattern": {"String": "s"}, "content": "ss"}
_PADDING: Final = {
    "strategy": {"Fixed": 2**31},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "</s>",
}


def _added(count: int, first_id: int, content: str = "<{}>") -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": first_id + number, "content": content.format(number), **flags} for number in range(count)]


TOKENIZERS: Final = (
    model("tokenizer: nested 50,000 deep", text("tokenizer.json", nested(50_000))),
    model("tokenizer: no JSON", text("tokenizer.json", "{")),
    model("tokenizer: an array", text("tokenizer.json", "[]")),
    model("tokenizer: an empty vocabulary", tokenizer("model.vocab", {})),
    model("tokenizer: ids beyond the model", tokenizer("model.vocab", {chr(33 + n): 10**6 + n for n in range(90)})),
    model("tokenizer: an id of 2^40", tokenizer("model.vocab", {"a": 2**40})),
    model("tokenizer: a pattern that backtracks", tokenizer("pre_tokenizer", _SLOW_PATTERN), ANY),
    model("tokenizer: a type of nobody", tokenizer("model.type", "Nothing")),
    model("tokenizer: a decoder of nobody", tokenizer("decoder", {"type": "Nothing"})),
    model(
        "tokenizer: each s becomes a megabyte",
        tokenizer("normalizer", {"type": "Replace", "pattern": {"String": "s"}, "content": "s" * 2**20}),
        ANY,  # transformers makes the normalizer of some families itself
    ),
    model(
        "tokenizer: thirty normalizers that double",
        tokenizer("normalizer", {"type": "Sequence", "normalizers": [_GROWS] * 30}),
        ANY,  # as above
        lines=good_rows(),
    ),
    model("tokenizer: code of its own", fields("tokenizer_config.json", auto_map={"AutoTokenizer": "evil.Tokenizer"}), ANY),
    model("tokenizer: 100,000 added tokens", tokenizer("added_tokens", _added(100_000, 1000)), ANY),
    model("tokenizer: an added token that the model lacks", tokenizer("added_tokens", _added(1, 100_000, "sun")), lines=good_rows()),
    model("tokenizer: an added token without text", tokenizer("added_tokens", _added(1, 5, "")), ANY),
    model("tokenizer: a normalizer without a pattern", tokenizer("normalizer", {**_GROWS, "pattern": {"Regex": ""}}), ANY),
    model("tokenizer: tokens that are drawn", tokenizer("model.dropout", 0.5), HARMLESS),
    model("tokenizer: two tokens with one id", tokenizer("model.vocab", dict.fromkeys("sun and", 5))),
    model("tokenizer: padding to 2^31", tokenizer("padding", _PADDING), ANY),
    model(
        "tokenizer: responses of a megabyte a token",
        tokenizer("decoder", {**_GROWS, "pattern": {"Regex": "."}, "content": "e" * 2**20}),
        ANY,
    ),
    model("tokenizer config: nested 50,000 deep", text("tokenizer_config.json", nested(50_000))),
    model("tokenizer config: fields of the loader", fields("tokenizer_config.json", subfolder="../..", tokenizer_file="/etc/passwd"), ANY),
    model("special tokens: an array", text("special_tokens_map.json", "[1]")),
    model("generation config: an array", text("generation_config.json", "[1]")),
    model("generation config: end tokens of other types", fields("generation_config.json", eos_token_id=["a", {}])),
    model("generation config: a negative end token", fields("generation_config.json", eos_token_id=-5), ANY),
    model("generation config: an end token of 10^30", fields("generation_config.json", eos_token_id=10**30), ANY),
    model("generation config: every token ends", fields("generation_config.json", eos_token_id=list(range(300))), HARMLESS),
    model("tokenizer: control characters in a prompt", tokenizer("truncation", None), ANY, lines=[row("sun\x00\x1b[2J\u202e and")] * 8),
)
