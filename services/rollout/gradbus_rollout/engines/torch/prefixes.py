"""Keys and values of prompts that were computed, for prompts that begin as they did: the next turn of an episode, or another fork.

What is kept are whole chunks of prefill, each by all ids up to its end. A chunk's keys and values are the same bits in every prompt that
begins with these ids, so a sample does not depend on what is kept. What decoding wrote is never kept: with `fast` numerics its last bits
are others than those of prefill.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor

from gradbus.formats.tokens import ID_DTYPE
from gradbus_rollout.engines.torch.attention import Cache

Span = tuple[int, int]


class KeptPrefixes:
    """Chunks of one version's prompts, those used last, in at most so many bytes; with none it keeps nothing."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._chunks: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0

    def restore(self, prompt: tuple[int, ...], spans: Sequence[Span], row: int, cache: Cache) -> int:
        """Fills a row with the beginning of its prompt. Returns its length, which is less than the prompt's.

        `spans` are (start, end) of the prompt's chunks; the cache has room for all of them.
        """
        if not self._most_bytes:
            return 0
        found: list[tuple[bytes, int]] = []
        for name, (start, end) in self._named(prompt, spans):
            entries = self._chunks.get(name)
            if entries is None or end >= len(prompt):  # what follows the last token has to be computed
                break
            cache.put(row, start, entries)
            found.append((name, end))
        self._use(name for name, _ in found)
        return found[-1][1] if found else 0

    def keep(self, prompt: tuple[int, ...], spans: Sequence[Span], row: int, cache: Cache) -> None:
        """Copies the whole chunks of a prompt, which were computed in this row: its first ones, if all of them are more than may be kept.

        Others make room before a chunk is copied, so that at no time more is held.
        """
        if not self._most_bytes:
            return
        chunks, size = [], 0
        for name, (start, end) in self._named(prompt, spans):
            size += cache.bytes_of(end - start)
            if size > self._most_bytes:
                break
            chunks.append((name, start, end))
        names = [name for name, _, _ in chunks]
        self._use(name for name in names if name in self._chunks)  # so that the others are older
        for name, start, end in chunks:
            if name not in self._chunks:
                self._make_room(cache.bytes_of(end - start))
                self._chunks[name] = entries = cache.read(row, start, end)
                self._bytes += entries.nbytes
        self._use(names)

    def drop(self) -> None:
        """Frees all of it: the weights are others, or the memory is needed."""
        self._chunks.clear()
        self._bytes = 0

    def _make_room(self, size: int) -> None:
        """Frees the chunks used longest ago, until there is room for so many bytes."""
        while self._bytes + size > self._most_bytes:
            _, dropped = self._chunks.popitem(last=False)
            self._bytes -= dropped.nbytes

    def _named(self, prompt: tuple[int, ...], spans: Sequence[Span]) -> Iterator[tuple[bytes, Span]]:
        """The whole chunks of a prompt, each with a name for all ids up to its end."""
        ids, so_far = np.array(prompt, dtype=ID_DTYPE), hashlib.blake2b(digest_size=32)
        for start, end in spans:
            if end > len(prompt):
                return
            so_far.update(ids[start:end].tobytes())
            yield so_far.digest(), (start, end)

    def _use(self, names: Iterable[bytes]) -> None:
        """Of a prompt the last chunk goes first, for it is of no use without those before it."""
        for name in reversed(list(names)):
            self._chunks.move_to_end(name)
