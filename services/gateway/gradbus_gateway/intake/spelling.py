"""The texts of a policy's tokens, each with its ids: by them a server's tokenizer is compared when the policy's own process has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradbus.errors import ModelError
from gradbus.tokenizer.tokenizer import Tokenizer

_SECONDS: Final = 60.0
"""Other submissions wait meanwhile, for this machine alone: 150,000 tokens take some seconds of a core."""
Spelled = tuple[str, tuple[int, ...]]
"""A token's text, and the ids of that text."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """All tokens of a tokenizer."""

    parts: Sequence[bytes]
    """Of some tokens each, in the order of their ids, as JSON: some 20 bytes a token, where Python's own objects take ten times that."""

    def tokens(self) -> Iterator[tuple[int, Sequence[Spelled]]]:
        """Each part with the id of its first token."""
        first = 0
        for part in self.parts:
            found = [(text, tuple(ids)) for text, ids in json.loads(part)]
            yield first, found
            first += len(found)


async def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """The spelling of a tokenizer. Raises ModelError if it takes too long, and as `Tokenizer.spelled` does."""
    deadline, parts, first = time.monotonic() + _SECONDS, list[bytes](), 0
    while found := await tokenizer.spelled(first):
        parts.append(json.dumps(found).encode())
        first += len(found)
        if time.monotonic() > deadline:
            raise ModelError(
                f"the gateway wrote {first} tokens of its tokenizer within {_SECONDS:g} s, and a teacher's server is compared by all; "
                "name a teacher with `path` or `run`, or send the run again when the gateway has less to do"
            )
    return Spelling(parts)
