"""What the decode step knows of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradbus_kernels.sampling import counter_uniform
from gradbus_rollout.engine import Completion
from gradbus_rollout.torch_engine.config import TorchEngineConfig
from gradbus_rollout.torch_engine.requests import RunningSample


class Rows:
    """Plain arrays, `[slots]` or `[slots * max_new_tokens]` each: one operation does the bookkeeping of all rows.

    Rows without a sample stand still at position 0.
    """

    def __init__(self, config: TorchEngineConfig, vocab_size: int) -> None:
        slots, longest = config.slots, config.max_new_tokens
        self._first = np.arange(slots) * longest  # places of the rows' first draws in the flat arrays
        self._draws = torch.arange(longest)
        self._stops = np.zeros(vocab_size, dtype=np.bool_)
        self._stops[[token for token in config.stop_token_ids if token < vocab_size]] = True
        self.active = np.zeros(slots, dtype=np.bool_)
        self.drawn = np.zeros(slots, dtype=np.int64)
        self._token = np.zeros(slots, dtype=np.int64)
        self._position = np.zeros(slots, dtype=np.int64)
        self._greedy = np.zeros(slots, dtype=np.bool_)
        self._uniforms = np.zeros(slots * longest)
        self._token_ids = np.zeros(slots * longest, dtype="<i4")
        self._logprobs = np.zeros(slots * longest, dtype="<f4")

    def start(self, rows: list[int], samples: Sequence[RunningSample]) -> None:
        """Put `samples` at the first token of their responses; all uniforms they will need are drawn here."""
        groups = [sample.prompt_group for sample in samples]
        seeds = torch.tensor([group.seeds[sample.n] for group, sample in zip(groups, samples, strict=True)])
        self.active[rows] = True
        self._token[rows] = [group.prompt_ids[-1] for group in groups]
        self._position[rows] = [len(group.prompt_ids) - 1 for group in groups]
        self._greedy[rows] = [group.greedy for group in groups]
        self._uniforms.reshape(len(self.drawn), -1)[rows] = counter_uniform(seeds[:, None], self._draws).numpy()

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Tokens and positions of the next forward, `[slots, 1]` each; on a CPU they share these arrays' memory."""
        return torch.from_numpy(self._token[:, None]), torch.from_numpy(self._position[:, None])

    def uniforms(self) -> Tensor:
        """Of the next draw, `[slots]`."""
        return torch.from_numpy(self._uniforms[self._first + self.drawn])

    def greedy(self) -> Tensor | None:
        """`[slots]`; None when no row is."""
        return torch.from_numpy(self._greedy) if self._greedy.any() else None

    def record(self, tokens: np.ndarray, logprobs: np.ndarray) -> list[int]:
        """Take one token a row and step on. Returns the rows whose sample has ended."""
        places = self._first + self.drawn
        self._token_ids[places] = tokens
        self._logprobs[places] = logprobs
        self._token[:] = tokens
        self._position += self.active
        self.drawn += self.active
        ended: list[int] = np.flatnonzero(self.active & (self._stops[tokens] | (self.drawn == len(self._draws)))).tolist()
        return ended

    def completion(self, row: int, sample: RunningSample) -> Completion:
        """What `sample` has drawn in `row`."""
        length, first = int(self.drawn[row]), int(self._first[row])
        tokens = self._token_ids[first : first + length].tolist()
        return Completion(
            token_ids=tuple(tokens),
            logprobs=self._logprobs[first : first + length].tobytes(),
            spans=sample.spans(length),
            finish="stop" if self._stops[tokens[-1]] else "length",
        )

    def clear(self, rows: list[int]) -> None:
        """Free `rows` for other samples."""
        self.active[rows] = self._greedy[rows] = False
        self._token[rows] = self._position[rows] = self.drawn[rows] = 0
