"""State of the rows of a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE
from gradbus_kernels.operators import counter_uniform
from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_rollout.engines.base import Completion
from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.samples.calls import RunningSample

_UNIFORMS_AT_ONCE: Final = 1 << 20


class Draws(NamedTuple):
    """Tokens and their log-probabilities, both `[B, S]`: S draws from each of B rows of logits."""

    tokens: np.ndarray
    logprobs: np.ndarray


class Rows:
    """Arrays of `[slots]` or `[slots * max_new_tokens]`, so that one operation does the bookkeeping of all rows.

    Rows without a sample stay at position 0. The public tensors share memory with private arrays.
    """

    def __init__(self, config: TorchEngineConfig, vocab_size: int) -> None:
        slots, longest = config.slots, config.max_new_tokens
        self._steps = torch.arange(longest)
        self._stops = np.zeros(vocab_size, dtype=np.bool_)
        self._stops[[token for token in config.stop_token_ids if token < vocab_size]] = True
        self.tokens, self.positions = torch.zeros(2, slots, 1, dtype=torch.int64).unbind()
        """Input of the next forward, int64 `[slots, 1]` each."""
        self.greedy: Tensor | None = None
        """Bool `[slots]`; None when no row is greedy."""
        self._active = np.zeros(slots, dtype=np.bool_)
        self._drawing = np.zeros(slots, dtype=np.int64)  # the same as numbers, because numpy adds equal dtypes faster
        self._greedy = np.zeros(slots, dtype=np.bool_)
        self._token, self._position = self.tokens.numpy()[:, 0], self.positions.numpy()[:, 0]
        self._first = np.arange(slots) * longest  # index of each row's first draw in the flat arrays
        self._next = self._first.copy()  # index of each row's next draw
        self._last = self._first + longest - 1  # index of the last draw that each row has room for
        self._longest = longest
        self._uniforms = np.zeros(slots * longest)
        self._token_ids = np.zeros(slots * longest, dtype=ID_DTYPE)
        self._logprobs = np.zeros(slots * longest, dtype=LOGPROB_DTYPE)

    def start(self, rows: list[int], samples: Sequence[RunningSample], first: Draws) -> list[int]:
        """Start `samples` with their first tokens, which were drawn in their lanes. Returns the rows whose sample has ended with it.

        Draws all uniforms that the samples will need.
        """
        groups = [sample.prompt_group for sample in samples]
        self._draw_uniforms(rows, [group.seeds[sample.n] for group, sample in zip(groups, samples, strict=True)])
        source = [sample.lane for sample in samples], [sample.n for sample in samples]
        self._token[rows] = self._token_ids[self._first[rows]] = first.tokens[source]
        self._logprobs[self._first[rows]] = first.logprobs[source]
        drawn = [len(group.seeds) - group.greedy for group in groups]
        of_groups = [(len(group.prompt_ids), group.max_new_tokens or self._longest) for group in groups]
        self._position[rows], lengths = np.array(of_groups).T
        self._greedy[rows] = np.array(source[1]) >= drawn
        self._next[rows] = self._first[rows] + 1
        self._last[rows] = self._first[rows] + lengths - 1
        self._active[rows] = self._drawing[rows] = True
        self._update_greedy()
        return [row for row in rows if self._stops[self._token[row]] or self._next[row] > self._last[row]]

    def _draw_uniforms(self, rows: list[int], seeds: list[int]) -> None:
        """Draws some rows at a time: the integers behind the uniforms take several times their memory."""
        uniforms, at_once = self._uniforms.reshape(len(self._active), -1), max(1, _UNIFORMS_AT_ONCE // len(self._steps))
        for part in slices(len(rows), at_once):
            uniforms[rows[part]] = counter_uniform(torch.tensor(seeds[part])[:, None], self._steps).numpy()

    def drawn(self, row: int) -> int:
        """Number of tokens of the sample in `row`."""
        return int(self._next[row] - self._first[row])

    def uniforms(self) -> Tensor:
        """Uniforms of the next draw, `[slots, 1]`."""
        return torch.from_numpy(self._uniforms[self._next, None])

    def record(self, draws: Draws) -> list[int]:
        """Record one token a row. Returns the rows whose sample has ended."""
        tokens = draws.tokens[:, 0]
        self._token[:] = self._token_ids[self._next] = tokens
        self._logprobs[self._next] = draws.logprobs[:, 0]
        ended: list[int] = (self._active & (self._stops[tokens] | (self._next == self._last))).nonzero()[0].tolist()
        self._position += self._drawing
        self._next += self._drawing
        return ended

    def completions(self, rows: list[int], samples: Sequence[RunningSample], now: int) -> list[Completion]:
        """The completions of `samples`, which ended `now` in `rows`."""
        firsts = self._first[rows]
        ends = self._next[rows]
        stopped = self._stops[self._token_ids[ends - 1]].tolist()
        return [
            Completion(
                token_ids=tuple(self._token_ids[first:end].tolist()),
                logprobs=self._logprobs[first:end].tobytes(),
                spans=sample.spans(end - first),
                finish="stop" if stop else "length",
                times=(sample.began, now),
            )
            for first, end, stop, sample in zip(firsts.tolist(), ends.tolist(), stopped, samples, strict=True)
        ]

    def clear(self, rows: list[int]) -> None:
        """Free `rows` for other samples."""
        self._active[rows] = self._drawing[rows] = self._greedy[rows] = False
        self._token[rows] = self._position[rows] = 0
        self._next[rows] = self._first[rows]
        self._update_greedy()

    def _update_greedy(self) -> None:
        self.greedy = torch.from_numpy(self._greedy) if self._greedy.any() else None
