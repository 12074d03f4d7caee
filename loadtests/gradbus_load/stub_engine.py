"""An engine without arithmetic: tokens arrive when calibrated hardware would produce them.

Weights are loaded and attested for real. A slot goes to the next sample at the computed end of the last one, not when this process
wakes up, so sampling takes exactly the calibrated time, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gradbus.errors import ModelError
from gradbus.formats.tokens import LOGPROB_DTYPE
from gradbus_load.calibration import EngineTiming, response_tokens, scrambled
from gradbus_rollout.engines.base import Completion, ExpectedLogprobs, GroupCompletion, GroupLimits, PromptGroup, check_group
from gradbus_rollout.engines.torch import TorchEngineConfig
from gradbus_rollout.engines.torch.model import read_supported_config
from gradbus_rollout.engines.torch.samples.calls import GenerateCall, RunningSample
from gradbus_rollout.engines.torch.version_format import WholeVersions
from gradbus_rollout.engines.torch.weights import ModelWeights, empty_like

_POOL = 1 << 16


@dataclass(eq=False, slots=True)
class _Running:
    """A sample in a slot; times are on the event loop's clock."""

    sample: RunningSample
    offset: int
    """Offset of its tokens in the pool."""
    length: int
    begins: float
    """Time of its first token."""


class StubEngine:
    """`Engine` whose lengths are lognormal and whose text is noise, both functions of (weights, prompt, seed)."""

    def __init__(self, folder: Path, config: TorchEngineConfig, timing: EngineTiming) -> None:
        """Shaped by the folder's config.json, without weights until the first `load`. Raises ModelError."""
        model = read_supported_config(folder)
        self._config = config
        self._timing = timing
        self._limits = GroupLimits(model.context_length, model.vocab_size, config.max_new_tokens, config.max_prompt_tokens)
        self._weights = WholeVersions(ModelWeights(model, empty_like("cpu", config.torch_dtype)))
        self._pool = _Pool(model.vocab_size, config.max_new_tokens, config.stop_token_ids)
        self._version: int | None = None
        self._salt = 0
        self._progress = 0
        self._closed = False
        self._released: float | None = None
        """When the device was released; None while it is in use."""
        self._free = config.slots
        self._queue: deque[tuple[GenerateCall, int, int, float]] = deque()
        self._running: list[tuple[float, int, _Running]] = []
        self._serial = itertools.count()
        self._calls: set[GenerateCall] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """See `Engine.name`."""
        return f"stub {self._timing.step_seconds * 1e3:g} ms"

    @property
    def version(self) -> int | None:
        """See `Engine.version`."""
        return self._version

    async def progress(self) -> int:
        """See `Engine.progress`: samples that ended, loads, and one for each look while samples run."""
        self._progress += bool(self._running)
        return self._progress

    async def load(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None = None) -> str:  # noqa: ARG002
        """See `Engine.load`."""
        self._refuse_if_closed()
        tensors = self._weights.read(weights)
        now = asyncio.get_running_loop().time()
        self._postpone(now)
        self._advance(now)
        digest = self._weights.replace(tensors)
        self._version, self._salt = version, int(digest[-15:], 16)
        self._progress += 1
        for _, _, running in self._running:
            running.sample.begin_span(self._drawn(running, now), version)
        self._wake()
        return digest

    async def generate(self, groups: Sequence[PromptGroup]) -> Sequence[GroupCompletion]:
        """See `Engine.generate`."""
        if self._version is None:
            raise ModelError("the engine has no weights yet; load a version first")
        self._refuse_if_closed()
        for group in groups:
            check_group(group, self._limits)
        if not groups:
            return []
        call, now = GenerateCall(groups), asyncio.get_running_loop().time()
        self._calls.add(call)
        self._queue.extend((call, number, n, now) for number, group in enumerate(groups) for n in range(len(group.seeds)))
        self._wake()
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            self._drop(call)
            raise

    async def release(self) -> None:
        """See `Engine.release`: time stands still for the samples."""
        self._wake()
        self._released = self._released or asyncio.get_running_loop().time()

    async def close(self) -> None:
        """See `Engine.close`. May be called again."""
        self._closed = True
        self._queue.clear()
        self._running.clear()
        for call in self._calls:
            call.future.set_exception(ModelError("the engine is closed; start another"))
        self._calls.clear()
        self._wake()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ModelError("the engine is closed; start another")

    def _wake(self) -> None:
        """Processes due events and sets the timer for the next one; while the device is released, nothing is due."""
        if self._released is not None:
            return
        loop = asyncio.get_running_loop()
        self._advance(loop.time())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._running[0][0], self._wake) if self._running else None

    def _postpone(self, now: float) -> None:
        """Ends a release: whatever was to happen later happens later by the time that it took."""
        if self._released is not None:
            away, self._released = now - self._released, None
            moved = [(ends, serial, replace(running, begins=running.begins + away)) for ends, serial, running in self._running]
            self._running = [(ends + away, serial, running) for ends, serial, running in moved]

    def _advance(self, now: float) -> None:
        """Advances the slots to `now`, event by event."""
        self._admit(now)
        while self._running and self._running[0][0] <= now:
            ends, _, running = heapq.heappop(self._running)
            self._finish(running)
            self._free += 1
            self._admit(ends)

    def _admit(self, moment: float) -> None:
        """Fills slots that became free at `moment`; a sample that arrived later starts at its arrival."""
        while self._free and self._queue:
            call, number, n, came = self._queue.popleft()
            group = call.groups[number]
            sample = RunningSample(call, number, n, lane=0)
            sample.begin_span(0, self._version or 0)
            offset, length = self._drawn_from(group, n)
            begins = max(moment, came) + len(group.prompt_ids) * self._timing.prefill_seconds
            ends = begins + length * self._timing.step_seconds
            heapq.heappush(self._running, (ends, next(self._serial), _Running(sample, offset, length, begins)))
            self._free -= 1

    def _drawn_from(self, group: PromptGroup, n: int) -> tuple[int, int]:
        """Index in the pool and number of tokens of a sample; a greedy sample is the same for every seed."""
        seed = hash(group.prompt_ids) & (2**62 - 1) if group.is_greedy(n) else group.seeds[n]
        most = group.max_new_tokens or self._config.max_new_tokens
        length = response_tokens(seed, self._timing.median_tokens, most) if self._config.stop_token_ids else most
        return scrambled(seed ^ self._salt) % _POOL, length

    def _drawn(self, running: _Running, now: float) -> int:
        """Number of its tokens at `now`."""
        if not self._timing.step_seconds:
            return 0
        return max(0, min(running.length - 1, int((now - running.begins) / self._timing.step_seconds)))

    def _finish(self, running: _Running) -> None:
        self._progress += 1
        completion = self._pool.completion(running.sample, running.offset, running.length)
        if running.sample.call.finish(running.sample.group, running.sample.n, completion):
            self._calls.discard(running.sample.call)

    def _drop(self, call: GenerateCall) -> None:
        """Frees the slots of an abandoned call."""
        self._calls.discard(call)
        self._queue = deque(entry for entry in self._queue if entry[0] is not call)
        kept = [entry for entry in self._running if entry[2].sample.call is not call]
        self._free += len(self._running) - len(kept)
        self._running = kept
        heapq.heapify(self._running)
        self._wake()


class _Pool:
    """A pool of random tokens: a sample costs a slice, not a loop over its tokens."""

    def __init__(self, vocab_size: int, longest: int, stop_token_ids: frozenset[int]) -> None:
        draw = np.random.default_rng(0)
        allowed = np.setdiff1d(np.arange(vocab_size), sorted(stop_token_ids))
        self._longest = longest
        self._stop = min(stop_token_ids, default=None)
        self._ids: tuple[int, ...] = tuple(draw.choice(allowed, _POOL + longest).tolist())
        self._logprobs = draw.uniform(-3.0, -0.1, _POOL + longest).astype(LOGPROB_DTYPE)

    def completion(self, sample: RunningSample, offset: int, length: int) -> Completion:
        """`length` tokens; the last is a stop token unless the sample was truncated."""
        longest = sample.prompt_group.max_new_tokens or self._longest
        ids, stopped = self._ids[offset : offset + length], self._stop is not None and length < longest
        if stopped and self._stop is not None:
            ids = (*ids[:-1], self._stop)
        logprobs = self._logprobs[offset : offset + length].tobytes()
        return Completion(ids, logprobs, sample.spans(length), "stop" if stopped else "length")
