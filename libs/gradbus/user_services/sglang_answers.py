"""What an SGLang server answers about itself, its tokenizer and given tokens, read strictly: a server may be another one, or a proxy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_PAIR: Final = 2
"""A log-probability and its token; a text may follow."""
_MOST_LOGPROB: Final = 1e-3
"""More than rounding makes of log 1."""
_MOST_TEXT: Final = 4096
"""Characters of a name that a spec keeps."""
_SHOWN: Final = 80
Document = Mapping[str, Any]


class UnusableAnswerError(ValueError):
    """An answer that says nothing that could be trained on. The message says why, without the server's name."""


@dataclass(frozen=True, slots=True)
class GivenTokens:
    """A prompt and the tokens after it whose log-probabilities are asked for."""

    prompt_ids: Sequence[int]
    """`[P]`, at least one."""
    token_ids: Sequence[int]
    """`[T]`, at least one."""
    vocabulary: int
    """Every id is below it."""
    top_k: int = 0
    """Most likely tokens of each position; 0: none."""

    @property
    def echoed(self) -> list[int]:
        """The ids as SGLang repeats them: 0 in place of the last one of its vocabulary, which it takes for padding of images."""
        return [0 if token == self.vocabulary - 1 else token for token in self.token_ids]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What a server says of T given tokens, at temperature 1."""

    own: Sequence[float]
    """Of each token, `[T]`."""
    ids: Sequence[Sequence[int]]
    """The most likely tokens of each position, `[T, k]`; empty if none were asked for."""
    most: Sequence[Sequence[float]]
    """Their log-probabilities, `[T, k]`."""
    weight_version: str
    """The server's name of the weights."""


def texts(said: Document, *names: str) -> tuple[str, ...]:
    """The texts of these names. Raises UnusableAnswerError if one is none, or too long for a spec."""
    found = [said.get(name) for name in names]
    if not all(isinstance(value, str) for value in found):
        raise UnusableAnswerError(f"it does not say {' and '.join(names)}; use SGLang 0.5.21 or later")
    if long := [name for name, value in zip(names, found, strict=True) if len(str(value)) > _MOST_TEXT]:
        raise UnusableAnswerError(f"its {long[0]} is longer than {_MOST_TEXT} characters; start the server with a shorter one")
    return tuple(map(str, found))


def most_tokens(said: Document) -> int | None:
    """The tokens of the longest request; None if the server does not say."""
    most = said.get("max_req_input_len")
    return most - 1 if isinstance(most, int) else None  # SGLang refuses a request of this length


def ids_of_texts(said: Document, count: int) -> list[tuple[int, ...]]:
    """The ids of `count` texts. Raises UnusableAnswerError."""
    found = said.get("tokens")
    if not isinstance(found, list) or len(found) != count or not all(isinstance(ids, list) and all(map(_is_id, ids)) for ids in found):
        raise UnusableAnswerError("it has no list of ids for each text; use SGLang 0.5.21 or later")
    return [tuple(ids) for ids in found]


def texts_of_ids(said: Document, count: int) -> list[str]:
    """The texts of `count` sequences of ids. Raises UnusableAnswerError."""
    found = said.get("text")
    if not isinstance(found, list) or len(found) != count or not all(isinstance(text, str) for text in found):
        raise UnusableAnswerError("it has no text for each list of ids; use SGLang 0.5.21 or later")
    return found


def token_logprobs(said: Document, given: GivenTokens) -> TokenLogprobs:
    """What the answer says of the given tokens. Raises UnusableAnswerError for wrong lengths, other tokens, and numbers that are none."""
    meta = said.get("meta_info")
    if not isinstance(meta, dict):
        raise UnusableAnswerError("it has no meta_info; use SGLang 0.5.21 or later")
    pairs = [_pair(pair) for pair in _of_tokens(meta, "input_token_logprobs", given)]
    if [token for _, token in pairs] not in (given.echoed, list(given.token_ids)):
        raise UnusableAnswerError("it has log-probabilities of other tokens than those asked about; look for a proxy before the server")
    rows = [_row(row, given.top_k) for row in _of_tokens(meta, "input_top_logprobs", given)] if given.top_k else []
    ids = [[token for _, token in row] for row in rows]
    most = [[logprob for logprob, _ in row] for row in rows]
    return TokenLogprobs([logprob for logprob, _ in pairs], ids, most, *texts(meta, "weight_version"))


def _of_tokens(meta: Document, name: str, given: GivenTokens) -> Sequence[Any]:
    """What the answer has for each given token. Before them comes the prompt's last token, of which nothing is said."""
    found, length = meta.get(name), len(given.token_ids)
    if not isinstance(found, list) or len(found) != length + 1:
        count = f"{len(found) - 1} tokens" if isinstance(found, list) else "no token"
        raise UnusableAnswerError(f"it has {name} of {count} for {length}; see the server's log")
    return found[1:]


def _row(row: Any, top_k: int) -> list[tuple[float, int]]:
    pairs = [_pair(pair) for pair in row] if isinstance(row, list) else []
    if len({token for _, token in pairs}) != top_k or len(pairs) != top_k:
        raise UnusableAnswerError(f"it has not {top_k} different tokens of each position; lower teacher.top_k")
    return pairs


def _pair(pair: Any) -> tuple[float, int]:
    if not isinstance(pair, list) or len(pair) < _PAIR or not _is_id(pair[1]):
        raise UnusableAnswerError(f"it has {str(pair)[:_SHOWN]} in place of a log-probability and a token; see the server's log")
    logprob = pair[0]
    if not isinstance(logprob, float | int) or not math.isfinite(logprob) or logprob > _MOST_LOGPROB:
        raise UnusableAnswerError(f"it has {str(logprob)[:_SHOWN]} for the log-probability of token {pair[1]}; see the server's log")
    return float(logprob), pair[1]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
