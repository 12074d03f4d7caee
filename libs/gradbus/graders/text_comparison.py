"""Graders that compare two texts. The names and their meaning follow OpenAI's graders."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from gradbus.graders.template import InvalidSampleError

MAX_SIMILARITY_CHARACTERS = 65_536


def string_check(operation: Literal["eq", "ne", "like", "ilike"], text: str, reference: str) -> float:
    """1.0 or 0.0: whether `text` equals `reference`, differs from it, contains it, or contains it in any case (eq, ne, like, ilike)."""
    match operation:
        case "eq":
            return float(text == reference)
        case "ne":
            return float(text != reference)
        case "like":
            return float(reference in text)
        case "ilike":
            return float(reference.casefold() in text.casefold())


def text_similarity(text: str, reference: str) -> float:
    """Indel similarity in [0, 1]: 2 (longest common subsequence) / (sum of lengths), 1.0 for two empty texts.

    The same as RapidFuzz's `ratio`. The subsequence is computed bit-parallel (Hyyrö, "Bit-parallel LCS-length
    computation revisited", 2004). Raises InvalidSampleError beyond MAX_SIMILARITY_CHARACTERS.
    """
    longest = max(len(text), len(reference))
    if longest > MAX_SIMILARITY_CHARACTERS:
        raise InvalidSampleError(f"text of {longest} characters; text_similarity takes {MAX_SIMILARITY_CHARACTERS}, compare a part of it")
    if text == reference:
        return 1.0
    positions: defaultdict[str, int] = defaultdict(int)
    for n, character in enumerate(reference):
        positions[character] |= 1 << n
    all_bits = (1 << len(reference)) - 1
    rest = all_bits
    for character in text:
        matches = rest & positions.get(character, 0)
        rest = ((rest + matches) | (rest - matches)) & all_bits
    common = len(reference) - rest.bit_count()
    return 2.0 * common / (len(text) + len(reference))
