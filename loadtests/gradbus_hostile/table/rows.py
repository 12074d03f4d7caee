"""Datasets."""

from __future__ import annotations

import json
from typing import Final

from gradbus_hostile.damage import nested
from gradbus_hostile.material import chat, good_rows, row
from gradbus_hostile.table.submission import ANY, FAILED, HARMLESS, REFUSED_OR_FAILED, rows

_MEGABYTE: Final = 1 << 20

DATA: Final = (
    rows("a lone surrogate in the prompt", '{"prompt": "sun \\ud800", "answer": "moon"}'),
    rows("a lone surrogate in the answer", '{"prompt": "sun", "answer": "\\ud800"}'),
    rows("a lone surrogate in a column's name", '{"prompt": "sun", "\\udfff": "moon"}'),
    rows("an empty prompt", row(""), ends=ANY),
    rows("a prompt of a megabyte", row("sun " * 2**18), ends=REFUSED_OR_FAILED),
    rows("a prompt of half a megabyte behind 300 good rows", *good_rows(300), row("sun " * 2**17), ends=FAILED),
    rows("half a megabyte beside the prompt", *good_rows(), row(more="x" * (_MEGABYTE // 2)), ends=HARMLESS),
    rows("five megabytes beside the prompt", *good_rows(), row(more="x" * 5 * _MEGABYTE)),
    rows("100,000 rows", *good_rows(100_000), ends=HARMLESS),
    rows("20,000 columns", row(**{f"column{n}": n for n in range(20_000)}), ends=ANY),
    rows("a column twice", '{"prompt": "sun", "prompt": 7, "answer": "moon"}', ends=ANY),
    rows("a mark of byte order", "\ufeff" + row(), ends=ANY),
    rows("a null in the prompt", row("sun\x00moon"), ends=ANY),
    rows("letters that combine without end", row("s" + "\u0301" * 40), ends=ANY),
    rows("four bytes a letter", row("\U0001f31e" * 8), ends=ANY),
    rows("a row nested 50,000 deep", '{"prompt": "sun", "answer": ' + nested(50_000) + "}"),
    rows("a number of 100,000 digits", '{"prompt": "sun", "answer": ' + "9" * 100_000 + "}", ends=ANY),
    rows("a number beyond float64", '{"prompt": "sun", "answer": 1e999}', ends=ANY),
    rows("NaN", '{"prompt": "sun", "answer": NaN}'),
    rows("a prompt that is a number", '{"prompt": 7}'),
    rows("a prompt that is false behind 300 good rows", *good_rows(300), row(False)),
    rows("messages without roles", '{"prompt": [{"content": "sun"}]}'),
    rows("messages of no text", row([]), ends=ANY),
    rows(
        "messages whose text is an image",
        row([{"role": "user", "content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]}]),
        ends=ANY,
    ),
    rows("2,000 messages", json.dumps({"prompt": [{"role": "user", "content": "sun"}] * 2000, "answer": "moon"})),
    rows("a role that is a template", chat("{{ 1 / 0 }}", role="{% include '/etc/passwd' %}"), ends=ANY),
    rows("text and messages by turns", *[row(), chat()] * 8, ends=ANY),
    rows("no rows", ""),
    rows("a row that is no object", "[]"),
)
