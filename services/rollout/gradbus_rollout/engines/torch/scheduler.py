"""Continuous batching over a fixed number of slots: a slot whose sample ends takes the next sample before the next step.

The batch is always `slots` rows; nobody reads what empty rows decode. A sample's bits depend on weights, prompt
and seed alone, so the scheduler is free to admit it at any step and beside any other sample.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gradbus.errors import ModelError
from gradbus_kernels.operators import SamplingParams, counter_uniform, sample_at
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch.attention import Cache
from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.gpu.graph import Replayed
from gradbus_rollout.engines.torch.gpu.prefill import PackedPrefill
from gradbus_rollout.engines.torch.gpu.step import DeviceStep
from gradbus_rollout.engines.torch.model import DecoderModel
from gradbus_rollout.engines.torch.prefill import Prefill
from gradbus_rollout.engines.torch.prefixes import KeptPrefixes
from gradbus_rollout.engines.torch.samples.calls import GenerateCall, RunningSample
from gradbus_rollout.engines.torch.samples.rows import Draws, Rows


class Scheduler:
    """Queue, prefill lanes and slots. Not thread-safe: the engine's thread owns it."""

    def __init__(self, model: DecoderModel, config: TorchEngineConfig) -> None:
        self._model = model
        self._config = config
        self._sampling = SamplingParams(config.temperature)
        self._cache: Cache = model.new_cache(config.slots)
        self._prefill: Prefill | PackedPrefill
        self._decode: Callable[[Rows], Draws]
        self._graphs: list[Replayed] = []
        self._kept = KeptPrefixes(config.kept_bytes)
        if model.on_gpu:
            packed, step = PackedPrefill(model, config.lanes, config.device, self._kept), DeviceStep(model, self._cache, config)
            self._prefill, self._decode = packed, step
            self._graphs = [packed.replayed, step.replayed]
            for cache in (self._cache, packed.cache):
                cache.free_memory = self._kept.drop
        else:
            self._prefill, self._decode = Prefill(model, config.lanes, config.device, self._kept), self._decode_rows
        self._rows = Rows(config, model.config.vocab_size)
        self._queue: deque[tuple[GenerateCall, int]] = deque()
        self._staged: deque[RunningSample] = deque()
        self._lanes: list[PromptGroup] = []
        self._prefilled = -1  # the version of the keys, values and first draws in the lanes
        self._first: Draws  # of the lanes' samples, `[lanes, samples]`
        self._running: dict[int, RunningSample] = {}
        self._free = list(range(config.slots))
        self._version = -1
        self.calls: set[GenerateCall] = set()

    @property
    def prefilled_chunks(self) -> int:
        """Chunks of prompts computed so far, also within a step. May be read from other threads."""
        return self._prefill.computed

    @property
    def caches(self) -> list[Tensor]:
        """Keys and values of the slots and of the prefill lanes, which the samples in flight go on from."""
        return [*self._cache.tensors, *self._prefill.cache.tensors]

    def drop_buffers(self) -> None:
        """Frees what the next step makes again, and what is kept of prompts."""
        self._kept.drop()
        self._model.drop_buffers()
        for graph in self._graphs:
            graph.drop()

    def submit(self, call: GenerateCall) -> None:
        """Queue the groups of a checked call."""
        self.calls.add(call)
        self._queue.extend((call, number) for number in range(len(call.groups)))

    def begin_version(self, version: int) -> None:
        """The weights have changed: running samples begin a new span at their next token."""
        self._version = version
        self._kept.drop()
        for row, sample in self._running.items():
            sample.begin_span(self._rows.drawn(row), version)

    def step(self) -> None:
        """Admit samples to the free slots, then draw one token for every running sample."""
        self._drop_cancelled()
        self._admit()
        if not self._running:
            return
        self._finish(self._rows.record(self._checked(self._decode(self._rows))))

    def _decode_rows(self, rows: Rows) -> Draws:
        hidden = self._model.forward(self._on_device(rows.tokens), self._on_device(rows.positions), self._cache)
        return self._draw(self._model.logits(hidden), rows.uniforms(), rows.greedy)

    def _draw(self, logits: Tensor, uniforms: Tensor, greedy: Tensor | None) -> Draws:
        """Draw from every row, including the empty ones."""
        sampling = self._sampling if greedy is None else replace(self._sampling, greedy=self._on_device(greedy))
        drawn = sample_at(logits, self._on_device(uniforms), sampling)
        return Draws(drawn.ids.cpu().numpy(), drawn.logprobs.cpu().numpy())

    def _checked(self, draws: Draws) -> Draws:
        """Raises ModelError when a log-probability is not finite."""
        if not math.isfinite(draws.logprobs.sum()):
            advice = "lower trainer.learning_rate, or correct the model"
            raise ModelError(f"policy version {self._version} gives logits that are not finite; {advice}")
        return draws

    def _on_device(self, tensor: Tensor) -> Tensor:
        """The tensor there. torch takes a third of a microsecond to find that a tensor is there already."""
        return tensor if self._config.device == "cpu" else tensor.to(self._config.device)

    def _admit(self) -> None:
        while self._free and (self._staged or self._queue):
            if not self._staged:
                self._stage()
            if self._prefilled != self._version:
                self._prefill_lanes()
            samples = [self._staged.popleft() for _ in range(min(len(self._free), len(self._staged)))]
            rows = [self._free.pop() for _ in samples]
            self._copy_prompts(rows, samples)
            now = time.time_ns()
            for sample in samples:
                sample.began = now
                sample.begin_span(0, self._version)
            self._running.update(zip(rows, samples, strict=True))
            self._finish(self._rows.start(rows, samples, self._first))

    def _stage(self) -> None:
        """Prefill the next prompts. All lanes are refilled together, when the last sample has left them."""
        taken = [self._queue.popleft() for _ in range(min(self._prefill.lanes, len(self._queue)))]
        self._lanes = [call.groups[number] for call, number in taken]
        began = time.time_ns()
        self._prefill_lanes()
        prefill = began, time.time_ns()
        for lane, (call, number) in enumerate(taken):
            call.prefills[number] = prefill
            self._staged.extend(RunningSample(call, number, n, lane) for n in range(len(call.groups[number].seeds)))

    def _prefill_lanes(self) -> None:
        """Compute the lanes, again when the version changes: a sample's prompt and first token come from its first span's version."""
        logits = self._prefill.run([group.prompt_ids for group in self._lanes])
        # Filled in numpy, which takes a tenth of torch's time for a row.
        seeds = np.zeros((self._prefill.lanes, max(len(group.seeds) for group in self._lanes)), dtype=np.int64)
        for lane, group in enumerate(self._lanes):
            seeds[lane, : len(group.seeds)] = group.seeds
        streams = torch.from_numpy(seeds)
        self._first = self._checked(self._first_draws(logits, counter_uniform(streams, torch.zeros_like(streams))))
        self._prefilled = self._version

    def _first_draws(self, logits: Tensor, uniforms: Tensor) -> Draws:
        """First tokens of the samples of all lanes, from logits `[lanes, V]` and uniforms `[lanes, S]`."""
        greedy = np.zeros(uniforms.shape, dtype=np.bool_)
        for lane, group in enumerate(self._lanes):
            greedy[lane, len(group.seeds) - group.greedy : len(group.seeds)] = True
        lanes = greedy[:, 0]  # of greedy samples alone
        drawn = self._draw(logits, uniforms, torch.from_numpy(lanes.copy()) if lanes.any() else None)
        if (mixed := greedy.any(axis=1) & ~lanes).any():  # a lane's draws are greedy together, so those of a mixed one are made twice
            likeliest = self._draw(logits, uniforms, torch.from_numpy(mixed))
            last = greedy & mixed[:, None]
            return Draws(*(np.where(last, best, other) for best, other in zip(likeliest, drawn, strict=True)))
        return drawn

    def _copy_prompts(self, rows: list[int], samples: list[RunningSample]) -> None:
        device = self._config.device
        longest = max(len(sample.prompt_group.prompt_ids) for sample in samples)
        lanes = torch.tensor([sample.lane for sample in samples], device=device)
        self._cache.copy_rows(torch.tensor(rows, device=device), self._prefill.cache, lanes, longest)

    def _finish(self, rows: list[int]) -> None:
        if not rows:
            return
        samples = [self._running.pop(row) for row in rows]
        for sample, completion in zip(samples, self._rows.completions(rows, samples, time.time_ns()), strict=True):
            if sample.call.finish(sample.group, sample.n, completion):
                self.calls.discard(sample.call)
        self._release(rows)

    def _release(self, rows: list[int]) -> None:
        self._rows.clear(rows)
        self._free.extend(rows)

    def _drop_cancelled(self) -> None:
        cancelled = {call for call in self.calls if call.future.cancelled()}
        if not cancelled:
            return
        self.calls -= cancelled
        self._queue = deque(entry for entry in self._queue if entry[0] not in cancelled)
        self._staged = deque(sample for sample in self._staged if sample.call not in cancelled)
        rows = [row for row, sample in self._running.items() if sample.call in cancelled]
        for row in rows:
            del self._running[row]
        self._release(rows)
