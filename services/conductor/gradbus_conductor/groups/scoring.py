"""From sampled groups to log entries: rewards, the verdict, and the reference's log-probabilities.

A failed scorer never becomes a reward of 0: its samples are asked for again until they are answered, and the
run says meanwhile what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from grpc.aio import AioRpcError

from gradbus.aio.tasks import cancel_and_wait
from gradbus.algorithms import algorithm_of, needs_reference_service
from gradbus.rpc import describe_rpc_error
from gradbus.spec import RunSpec
from gradbus.telemetry import get_logger
from gradbus.telemetry.busy import BusyTimer
from gradbus.v1.group_pb2 import VERDICT_FILTERED, VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward, ScoreRequest, ScoreSample
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sample
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.traces import Call, GroupTraces

_log = get_logger(__name__)
_CALLS = 16
_GROUPS_A_CALL = 128
_JUDGED = {REWARD_STATUS_OK, REWARD_STATUS_INVALID}
_BACKOFF_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0)
_EXTRA_SECONDS = 5.0  # the reward service's own deadline comes first, so that its answer says which sample hung


@dataclass(slots=True)
class _Pending:
    group: Group
    item: str
    answers: dict[str, SampleReward] = field(default_factory=dict)
    attempts: int = 0
    entry: LogEntry | None = None

    def unanswered(self) -> list[Sample]:
        return [sample for sample in self.group.samples if sample.sample_id not in self.answers]


@dataclass(slots=True)
class ScoringState:
    """What the run's status shows."""

    failing: dict[int, str] = field(default_factory=dict)
    """Index to why its last attempt failed."""
    busy: BusyTimer = field(default_factory=BusyTimer)
    """Time with at least one call in flight."""
    scored: BusyTimer = field(default_factory=BusyTimer)
    """Of that, the time in the reward service."""
    referenced: BusyTimer = field(default_factory=BusyTimer)
    """Of that, the time in the reference service."""


class Scoring:
    """Scores groups in the background; `done` gets each group's log entry."""

    def __init__(self, clients: Clients, run_id: str, spec: RunSpec, traces: GroupTraces, done: Callable[[LogEntry], None]) -> None:
        self._clients = clients
        self._run_id = run_id
        self._spec = spec
        self._traces = traces
        self._done = done
        self._wanted: set[int] = set()
        self._waiting: dict[int, _Pending] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._portion = _GROUPS_A_CALL
        self.state = ScoringState()

    def submit(self, groups: Iterable[tuple[Group, str]]) -> None:
        """Takes sampled groups, each with its dataset row as JSON."""
        fresh = {group.index: _Pending(group, item) for group, item in groups}
        self._wanted.update(fresh)
        self._waiting.update(fresh)
        self._start()

    def forget(self, indexes: Iterable[int]) -> None:
        """Nobody waits for these any more: they are not asked for again."""
        for index in indexes:
            self._wanted.discard(index)
            self._waiting.pop(index, None)
            self.state.failing.pop(index, None)

    async def close(self) -> None:
        """Drops what is in flight; it is found again in the buffer."""
        self._wanted.clear()
        self._waiting.clear()
        await asyncio.gather(*(cancel_and_wait(task) for task in list(self._tasks)))

    def _start(self) -> None:
        # Every waiting group goes into one call, up to a bound; a slow scorer gets several calls side by side.
        while self._waiting and len(self._tasks) < _CALLS:
            batch = [self._waiting.pop(index) for index in list(islice(self._waiting, self._portion))]
            task = asyncio.create_task(self._process(batch), name="score")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    async def _process(self, batch: list[_Pending]) -> None:
        try:
            with self.state.busy:
                await self._ask(batch)
        except Exception as error:  # noqa: BLE001 - the boundary of one call: logged whole, its groups are asked for again
            _log.exception("scoring_failed", run_id=self._run_id, groups=len(batch))
            self._note(batch, f"a fault in scoring: {type(error).__name__}: {error}; see the conductor's log")
        judged = {pending.group.index: pending.entry for pending in batch if pending.entry is not None and self._is_complete(pending.entry)}
        self._portion = _portion(self._portion, len(batch), is_of_use=bool(judged))
        for pending in batch:
            if pending.group.index not in self._wanted:
                continue
            if (entry := judged.get(pending.group.index)) is not None:
                self.forget([pending.group.index])
                self._done(entry)
            else:
                self._retry_later(pending)

    async def _ask(self, batch: list[_Pending]) -> None:
        await self._score([pending for pending in batch if pending.entry is None])
        for pending in batch:
            if pending.entry is None and not pending.unanswered():
                pending.entry = self._judge(pending)
        await self._add_reference([pending for pending in batch if pending.entry is not None])

    def _note(self, batch: Iterable[_Pending], reason: str, call: Call | None = None) -> None:
        failing = {pending.group.index: reason for pending in batch if pending.group.index in self._wanted}
        self.state.failing |= failing
        if call is not None:
            call.failed(failing, reason)

    def _retry_later(self, pending: _Pending) -> None:
        delay = _BACKOFF_SECONDS[min(pending.attempts, len(_BACKOFF_SECONDS) - 1)]
        pending.attempts += 1

        def again() -> None:
            if pending.group.index in self._wanted:
                self._waiting[pending.group.index] = pending
                self._start()

        asyncio.get_running_loop().call_later(delay, again)

    async def _score(self, batch: Sequence[_Pending]) -> None:
        asked = [(pending, sample) for pending in batch for sample in pending.unanswered()]
        if not asked:
            return
        with self._traces.call("score", (pending.group.index for pending in batch)) as call, self.state.scored:
            request = ScoreRequest(
                run_id=self._run_id,
                reward_json=self._spec.reward.model_dump_json(),
                samples=[_question(pending, sample, call.spans.get(pending.group.index, "")) for pending, sample in asked],
            )
            try:
                response = await self._clients.reward.Score(request, timeout=self._spec.reward.timeout_seconds + _EXTRA_SECONDS)
            except AioRpcError as error:
                _log.warning("scorer_unreachable", run_id=self._run_id, code=error.code().name, detail=error.details())
                self._note(batch, describe_rpc_error("the reward service", self._clients.addresses.reward, error), call)
                return
            self._take_answers(asked, {result.sample_id: result for result in response.results}, call)

    def _take_answers(self, asked: Sequence[tuple[_Pending, Sample]], results: Mapping[str, SampleReward], call: Call) -> None:
        noted: set[int] = set()
        for pending, sample in asked:
            result = results.get(sample.sample_id)
            if result is not None and result.status in _JUDGED:
                pending.answers[sample.sample_id] = result
            elif pending.group.index not in noted:
                noted.add(pending.group.index)  # the first failure of a group is the cause, later ones may only follow from it
                reason = result.reason if result is not None else "no answer for the sample"
                self._note([pending], f"the scorer on sample {sample.sample_id}: {reason}", call)
        for index, pending in {pending.group.index: pending for pending, _ in asked}.items():
            call.answered(
                index, (pending.answers[sample.sample_id] for sample in pending.group.samples if sample.sample_id in pending.answers)
            )

    def _judge(self, pending: _Pending) -> LogEntry:
        group = pending.group
        rewards = [pending.answers[sample.sample_id] for sample in group.samples]
        truncated = [sample.finish_reason == FINISH_REASON_LENGTH for sample in group.samples]
        judgement = algorithm_of(self._spec.algorithm).compute_advantages(rewards, truncated)
        return LogEntry(
            index=group.index,
            verdict=VERDICT_FILTERED if judgement.filtered else VERDICT_TRAIN,
            reason=judgement.reason,
            group=group.SerializeToString(),
            rewards=rewards,
            version=group.version,
        )

    def _is_complete(self, entry: LogEntry) -> bool:
        needs_reference = needs_reference_service(self._spec) and entry.verdict == VERDICT_TRAIN
        return not needs_reference or bool(entry.reference_logprobs)

    async def _add_reference(self, batch: Sequence[_Pending]) -> None:
        asked = [pending for pending in batch if pending.entry is not None and not self._is_complete(pending.entry)]
        if not asked:
            return
        sequences = [
            ReferenceSequence(sample_id=sample.sample_id, prompt_ids=pending.group.prompt_ids, token_ids=sample.token_ids)
            for pending in asked
            for sample in pending.group.samples
        ]
        request = LogProbsRequest(run_id=self._run_id, temperature=self._spec.rollout.temperature, sequences=sequences)
        with self._traces.call("reference", (pending.group.index for pending in asked)) as call, self.state.referenced:
            try:
                response = await self._clients.reference.LogProbs(request, timeout=120.0)
            except AioRpcError as error:
                _log.warning("reference_unreachable", run_id=self._run_id, code=error.code().name, detail=error.details())
                self._note(asked, describe_rpc_error("the reference service", self._clients.addresses.reference, error), call)
                return
            self._take_logprobs(asked, {result.sample_id: result.logprobs for result in response.results}, call)

    def _take_logprobs(self, asked: Iterable[_Pending], found: Mapping[str, bytes], call: Call) -> None:
        for pending in asked:
            samples = pending.group.samples
            values = [found[sample.sample_id] for sample in samples if len(found.get(sample.sample_id, b"")) == len(sample.token_ids)]
            if pending.entry is not None and len(values) == len(samples):
                pending.entry.reference_logprobs.extend(values)
            else:
                self._note([pending], "the reference service left log-probabilities out", call)


def _portion(now: int, asked: int, *, is_of_use: bool) -> int:
    """Groups in the next call: one that judged none may have been too much for a message or a deadline, and would be for ever."""
    if is_of_use:
        return min(_GROUPS_A_CALL, now + 1) if asked >= now else now
    return max(1, min(now, asked // 2)) if asked > 1 else now


def _question(pending: _Pending, sample: Sample, traceparent: str) -> ScoreSample:
    return ScoreSample(
        sample_id=sample.sample_id,
        group_id=str(pending.group.index),
        prompt=pending.group.prompt_text,
        response=sample.text,
        item_json=pending.item,
        finish_reason="stop" if sample.finish_reason == FINISH_REASON_STOP else "length",
        weight_version=oldest_version(sample, pending.group.version),
        traceparent=traceparent,
    )


def oldest_version(sample: Sample, default: int) -> int:
    """The oldest policy version among a sample's trainable spans; `default` if it has none."""
    return min((part.version for part in sample.spans if part.trainable), default=default)
