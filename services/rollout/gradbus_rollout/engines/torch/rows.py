"""What the decode step knows of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradbus_kernels.operators import counter_uniform
from gradbus_rollout.engines.base import Completion
from gradbus_rollout.engines.torch.calls import RunningSample
from gradbus_rollout.engines.torch.config import TorchEngineConfig


class Draws(NamedTuple):
    """Tokens and their log-probabilities, both `[B, S]`: S draws from each of B rows of logits."""

    tokens: np.ndarray
    logprobs: np.ndarray


class Rows:
    """Plain arrays, `[slots]` or `[slots * max_new_tokens]` each: one operation does the bookkeeping of all rows.

    Rows without a sample stand still at position 0. Public tensors share the memory of private arrays.
    """

    def __init__(self, config: TorchEngineConfig, vocab_size: int) -> None:
        slots, longest = config.slots, config.max_new_tokens
        self._numbers = torch.arange(longest)
        self._stops = np.zeros(vocab_size, dtype=np.bool_)
        self._stops[[token for token in config.stop_token_ids if token < vocab_size]] = True
        self.tokens, self.positions = torch.zeros(2, slots, 1, dtype=torch.int64).unbind()
        """Of the next forward, `[slots, 1]` each."""
        self.greedy: Tensor | None = None
        """Bool `[slots]`; None when no row is."""
        self._active = np.zeros(slots, dtype=np.bool_)
        self._greedy = np.zeros(slots, dtype=np.bool_)
        self._token, self._position = self.tokens.numpy()[:, 0], self.positions.numpy()[:, 0]
        self._first = np.arange(slots) * longest  # places of the rows' first draws in the flat arrays
        self._place = self._first.copy()  # of the next draws
        self._last = self._first + longest - 1
        self._uniforms = np.zeros(slots * longest)
        self._token_ids = np.zeros(slots * longest, dtype="<i4")
        self._logprobs = np.zeros(slots * longest, dtype="<f4")

    def start(self, rows: list[int], samples: Sequence[RunningSample], first: Draws) -> list[int]:
        """Put `samples` behind their first tokens, drawn from their lanes. Returns the rows whose sample has ended so.

        All uniforms that they will need are drawn here.
        """
        groups = [sample.prompt_group for sample in samples]
        seeds = torch.tensor([group.seeds[sample.n] for group, sample in zip(groups, samples, strict=True)])
        self._uniforms.reshape(len(self._active), -1)[rows] = counter_uniform(seeds[:, None], self._numbers).numpy()
        drawn = [sample.lane for sample in samples], [sample.n for sample in samples]
        self._token[rows] = self._token_ids[self._first[rows]] = first.tokens[drawn]
        self._logprobs[self._first[rows]] = first.logprobs[drawn]
        self._position[rows] = [len(group.prompt_ids) for group in groups]
        self._place[rows] = self._first[rows] + 1
        self._active[rows] = True
        self._greedy[rows] = [group.greedy for group in groups]
        self._note_greedy()
        return [row for row in rows if self._stops[self._token[row]] or self._place[row] > self._last[row]]

    def drawn(self, row: int) -> int:
        """Tokens that the sample in `row` has."""
        return int(self._place[row] - self._first[row])

    def uniforms(self) -> Tensor:
        """Of the next draw, `[slots, 1]`."""
        return torch.from_numpy(self._uniforms[self._place, None])

    def record(self, draws: Draws) -> list[int]:
        """Take one token a row and step on. Returns the rows whose sample has ended."""
        tokens = draws.tokens[:, 0]
        self._token[:] = self._token_ids[self._place] = tokens
        self._logprobs[self._place] = draws.logprobs[:, 0]
        ended: list[int] = (self._active & (self._stops[tokens] | (self._place == self._last))).nonzero()[0].tolist()
        self._position += self._active
        self._place += self._active
        return ended

    def completion(self, row: int, sample: RunningSample, now: int) -> Completion:
        """What `sample` has drawn in `row`, ended `now`."""
        length, first = self.drawn(row), int(self._first[row])
        tokens = self._token_ids[first : first + length].tolist()
        return Completion(
            token_ids=tuple(tokens),
            logprobs=self._logprobs[first : first + length].tobytes(),
            spans=sample.spans(length),
            finish="stop" if self._stops[tokens[-1]] else "length",
            times=(sample.began, now),
        )

    def clear(self, rows: list[int]) -> None:
        """Free `rows` for other samples."""
        self._active[rows] = self._greedy[rows] = False
        self._token[rows] = self._position[rows] = 0
        self._place[rows] = self._first[rows]
        self._note_greedy()

    def _note_greedy(self) -> None:
        self.greedy = torch.from_numpy(self._greedy) if self._greedy.any() else None
