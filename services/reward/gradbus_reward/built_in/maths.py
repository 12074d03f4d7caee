"""Whether two answers are the same mathematically, by the library math-verify (Kydlíček 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from gradbus_reward.built_in.texts import Grade, UngradableError

_MAX_CHARACTERS = 16_384
"""From the end of the text, where its answer is: the library searches it with regular expressions."""
_MARK = "####"
"""Before the answer of a solution of GSM8K."""


def compiled(_settings: Mapping[str, Any]) -> Grade:
    """The grader of a text and its reference."""
    return _grade


def _grade(text: str, reference: str) -> float:
    # The caller bounds the time: the library's own alarm counts by the clock, in which a busy machine has its part.
    given = parse(_answer(text)[-_MAX_CHARACTERS:], parsing_timeout=None)
    return float(verify(_gold(reference), given, timeout_seconds=None))


def _answer(text: str) -> str:
    """What the last `<answer>` holds, because the library finds no number beside a tag; without one, the whole text."""
    _, opened, rest = text.rpartition("<answer>")
    return rest.partition("</answer>")[0] if opened else text


@lru_cache(1024)
def _gold(reference: str) -> list[Any]:
    """What the reference means. Raises UngradableError."""
    answer = reference.rpartition(_MARK)[2].strip()
    is_marked = "$" in answer or "\\boxed" in answer
    # Bare LaTeX: without the box the library would read the last number in it.
    read = [] if is_marked else parse(f"\\boxed{{{answer}}}", [LatexExtractionConfig()], parsing_timeout=None)
    if not (found := read or parse(answer, parsing_timeout=None)):
        raise UngradableError(
            f"the reference {answer[:80]!r} is no answer; write LaTeX, a number, or a solution that ends in {_MARK} answer"
        )
    return list(found)
