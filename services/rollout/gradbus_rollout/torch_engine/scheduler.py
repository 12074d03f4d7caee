"""Fixed slots, kept full: a slot that ends takes the next sample before the next step.

The batch is always `slots` rows; empty ones decode junk that nobody reads. A row's bits depend on its
weights, prompt and seed alone, so when and beside whom a sample is admitted is free to choose.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from gradbus.errors import ModelError
from gradbus_kernels.sampling import sample_tokens
from gradbus_rollout.torch_engine.config import TorchEngineConfig
from gradbus_rollout.torch_engine.model import DecoderModel
from gradbus_rollout.torch_engine.prefill import Prefill
from gradbus_rollout.torch_engine.requests import Request, RunningSample
from gradbus_rollout.torch_engine.rows import Rows


class Scheduler:
    """Queue, prefill lanes and slots. Not thread-safe: the engine's loop owns it."""

    def __init__(self, model: DecoderModel, config: TorchEngineConfig) -> None:
        self._model = model
        self._config = config
        self._prefill = Prefill(model, config.lanes, config.device)
        self._cache = model.new_cache(config.slots)
        self._rows = Rows(config, model.shape.vocab_size)
        self._queue: deque[tuple[Request, int]] = deque()
        self._staged: deque[RunningSample] = deque()
        self._prompts: list[tuple[int, ...]] = []  # of the lanes
        self._prefilled = -1  # the version whose keys and values the lanes hold
        self._running: dict[int, RunningSample] = {}
        self._free = list(range(config.slots))
        self._version = -1
        self.requests: set[Request] = set()

    def submit(self, request: Request) -> None:
        """Queue a checked request."""
        self.requests.add(request)
        self._queue.extend((request, number) for number in range(len(request.groups)))

    def begin_version(self, version: int) -> None:
        """The weights have changed: running samples begin a new span at their next token."""
        self._version = version
        for row, sample in self._running.items():
            sample.begin_span(int(self._rows.drawn[row]), version)

    def step(self) -> None:
        """Admit what fits, then draw one token for every running sample."""
        self._drop_cancelled()
        self._admit()
        if not self._running:
            return
        tokens, logprobs = self._decode()
        if not np.isfinite(logprobs[self._rows.active]).all():
            raise ModelError(f"policy version {self._version} gives logits that are not finite; lower the learning rate and resume earlier")
        ended = self._rows.record(tokens, logprobs)
        if ended:
            self._finish(ended)

    def _decode(self) -> tuple[np.ndarray, np.ndarray]:
        device, greedy = self._config.device, self._rows.greedy()
        tokens, positions = self._rows.inputs()
        logits = self._model.logits(self._model.forward(tokens.to(device), positions.to(device), self._cache))
        uniforms = self._rows.uniforms().to(device)
        drawn, logprobs = sample_tokens(logits, uniforms, None if greedy is None else greedy.to(device), self._config.temperature)
        return drawn.cpu().numpy(), logprobs.cpu().numpy()

    def _admit(self) -> None:
        while self._free and (self._staged or self._queue):
            if not self._staged:
                self._stage()
            if self._prefilled != self._version:
                self._prefill_lanes()
            samples = [self._staged.popleft() for _ in range(min(len(self._free), len(self._staged)))]
            rows = [self._free.pop() for _ in samples]
            self._copy_prompts(rows, samples)
            self._rows.start(rows, samples)
            for sample in samples:
                sample.begin_span(0, self._version)
            self._running.update(zip(rows, samples, strict=True))

    def _stage(self) -> None:
        """Prefill the next prompts. All lanes are refilled at once, when the last sample has left them."""
        groups = [self._queue.popleft() for _ in range(min(self._prefill.lanes, len(self._queue)))]
        self._prompts = [request.groups[number].prompt_ids for request, number in groups]
        self._prefill_lanes()
        for lane, (request, number) in enumerate(groups):
            self._staged.extend(RunningSample(request, number, n, lane) for n in range(len(request.groups[number].seeds)))

    def _prefill_lanes(self) -> None:
        """Also for samples still staged when the version changes: a prompt's keys and values are of its sample's first span."""
        self._prefill.run(self._prompts)
        self._prefilled = self._version

    def _copy_prompts(self, rows: list[int], samples: list[RunningSample]) -> None:
        device = self._config.device
        longest = max(len(sample.prompt_group.prompt_ids) for sample in samples) - 1
        lanes = torch.tensor([sample.lane for sample in samples], device=device)
        self._cache.copy_rows(torch.tensor(rows, device=device), self._prefill.cache, lanes, longest)

    def _finish(self, rows: list[int]) -> None:
        for row in rows:
            sample = self._running.pop(row)
            if sample.request.finish(sample.group, sample.n, self._rows.completion(row, sample)):
                self.requests.discard(sample.request)
        self._release(rows)

    def _release(self, rows: list[int]) -> None:
        self._rows.clear(rows)
        self._free.extend(rows)

    def _drop_cancelled(self) -> None:
        gone = {request for request in self.requests if request.future.cancelled()}
        if not gone:
            return
        self.requests -= gone
        self._queue = deque(entry for entry in self._queue if entry[0] not in gone)
        self._staged = deque(sample for sample in self._staged if sample.request not in gone)
        rows = [row for row, sample in self._running.items() if sample.request in gone]
        for row in rows:
            del self._running[row]
        self._release(rows)
