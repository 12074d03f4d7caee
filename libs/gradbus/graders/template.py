"""Templates: text with `{{ sample.output_text }}`, `{{ sample.finish_reason }}` and `{{ item.column.key }}` in it.

Only names: without filters and calls a template can neither run code nor hang.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gradbus.errors import GraderError

SAMPLE_FIELDS = ("output_text", "finish_reason")

_NAME = re.compile(r"[\w-]+(\.[\w-]+)+")

Path = tuple[str, ...]
MAX_RENDERED_CHARACTERS = 4 << 20
"""A row may have a megabyte and a template thousands of names: without a bound the text would take all memory of the reward service."""
_MAX_SHOWN = 200
_MAX_DIGITS = 9


class InvalidSampleError(GraderError):
    """This sample cannot be graded, now or later; the grader itself works."""


class Template:
    """A template, parsed once. Raises GraderError if it is not well formed."""

    def __init__(self, text: str) -> None:
        self.text = text
        first, *rest = text.split("{{")
        self._pieces: list[str | Path] = [first]
        for part in rest:
            name, closed, literal = part.partition("}}")
            if not closed:
                raise GraderError(f"template {_shown(text)} has a '{{{{' that is never closed; write {{{{ item.answer }}}}")
            self._pieces += [self._parsed(name), literal]

    @property
    def names(self) -> list[Path]:
        """Every name used, as its parts: `("item", "answer")`."""
        return [piece for piece in self._pieces if isinstance(piece, tuple)]

    def render(self, sample: Mapping[str, object], item: Mapping[str, object]) -> str:
        """The text for one sample: strings unchanged, other values as JSON.

        Raises GraderError for a name that the row does not have, InvalidSampleError beyond MAX_RENDERED_CHARACTERS.
        """
        texts: list[str] = []
        room = MAX_RENDERED_CHARACTERS
        for piece in self._pieces:
            texts.append(piece if isinstance(piece, str) else self._value(piece, sample, item))
            room -= len(texts[-1])
            if room < 0:
                most = f"more than {MAX_RENDERED_CHARACTERS} characters with this row and response"
                raise InvalidSampleError(f"template {_shown(self.text)} makes {most}; use each long column once")
        return "".join(texts)

    def _parsed(self, written: str) -> Path:
        name = written.strip()
        if not _NAME.fullmatch(name):
            raise GraderError(f"template {_shown(self.text)}: {_shown(name)} is not a name; write sample.output_text or item.<column>")
        path = tuple(name.split("."))
        if path[0] not in {"sample", "item"}:
            raise GraderError(f"template {_shown(self.text)}: {_shown(name)} starts with neither `sample` nor `item`; write item.<column>")
        if path[0] == "sample" and (len(path) != 2 or path[1] not in SAMPLE_FIELDS):
            raise GraderError(f"template {_shown(self.text)}: a sample has no {_shown(name)}; it has {', '.join(SAMPLE_FIELDS)}")
        return path

    def _value(self, path: Path, sample: Mapping[str, object], item: Mapping[str, object]) -> str:
        value: object = sample if path[0] == "sample" else item
        for key in path[1:]:
            value = self._step(value, key, path)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _step(self, value: object, key: str, path: Path) -> object:
        if isinstance(value, (dict, Mapping)) and key in value:  # dict first: the check of an abstract class is slow
            return value[key]
        if (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and len(key) <= _MAX_DIGITS
            and key.isdecimal()
            and int(key) < len(value)
        ):
            return value[int(key)]
        raise GraderError(f"template {_shown(self.text)}: this row has no {'.'.join(path)!r}; add the column or fix the template")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
