"""JSON and other values from users, read strictly: what passes can be written again as UTF-8, JSON and protobuf by every service."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Levels of lists and objects inside each other."""
_MAX_DIGITS: Final = 300
_MAX_BITS: Final = 1023
_SHOWN_PATH: Final = 120
_TOO_LARGE: Final = "a number beyond the range of 64-bit floats"
_NOT_A_NUMBER: Final = "NaN, which is no number"
_TOO_DEEP: Final = f"more than {MAX_DEPTH} lists and objects inside each other"
_HALF_PAIR: Final = "half of a surrogate pair, which is no character"

Path = tuple[str | int, ...]


def parse_json(data: bytes, most_values: int | None = None, constant: Callable[[str], object] | None = None) -> Any:
    """The value in `data`, which is UTF-8, with or without a byte order mark.

    Raises ValueError, which says where, for what is not JSON, for a number that is not finite, for half of a surrogate pair and for
    lists and objects deeper than MAX_DEPTH. With `most_values`, also for more values than that, before memory is taken for them.
    `constant` gives the value of the bare words `Infinity`, `-Infinity` and `NaN`, which are refused without it.
    """
    text = data.decode("utf-8-sig")
    opened = text.count("[") + text.count("{")
    if most_values is not None and opened + text.count(",") > most_values:
        raise ValueError(f"it has more than {most_values} values")
    try:
        with collection_paused():
            value = (_decoder(constant) if constant else _DECODER).decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Only then can there be a fault that the decoder does not find; most rows of a dataset are read without this pass.
    if opened > MAX_DEPTH or "\\u" in text:
        for path, fault in value_faults(value):
            raise ValueError(f"{dotted(path)} has {fault}")
    return value


@contextmanager
def collection_paused() -> Iterator[None]:
    """For a block that decodes JSON: looking for garbage meanwhile takes five times as long, and no other thread runs."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def value_faults(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """(path, fault) of each number, text and nesting in `value` that JSON, UTF-8 or a 64-bit float cannot hold."""
    if isinstance(value, str):
        if not is_unicode(value):
            yield path, _HALF_PAIR
    elif isinstance(value, int | float):
        if not _fits_float(value):
            yield path, _NOT_A_NUMBER if isinstance(value, float) and math.isnan(value) else _TOO_LARGE
    elif isinstance(value, dict | list | tuple):
        if len(path) >= MAX_DEPTH:
            yield path, _TOO_DEEP
            return
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and not is_unicode(key):
                yield (*path, key), f"a name with {_HALF_PAIR}"
            yield from value_faults(part, (*path, key))


def has_more_values(value: object, most: int) -> bool:
    """Whether there are more than `most` values in `value`; of a larger one, only so many are looked at."""
    count, waiting = 1, [value]
    while waiting and count <= most:
        part = waiting.pop()
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        count += len(inner)
        if count <= most:
            waiting.extend(inner)
    return count > most


def is_unicode(text: str) -> bool:
    """Whether `text` can be encoded: it has no half of a surrogate pair, which Python and JSON allow."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def dotted(path: Path) -> str:
    """`path` as text that can be encoded, whatever its names are."""
    text = ".".join(str(part) for part in path).encode("utf-8", "backslashreplace").decode() or "the value"
    return text if len(text) <= _SHOWN_PATH else text[: _SHOWN_PATH - 1] + "…"


def _fits_float(number: float) -> bool:
    return number.bit_length() <= _MAX_BITS if isinstance(number, int) else math.isfinite(number)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(_TOO_LARGE)
    return number


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(_TOO_LARGE)
    return int(text)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _decoder(constant: Callable[[str], object]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=_float, parse_int=_whole, parse_constant=constant)


_DECODER: Final = _decoder(_constant)
