"""From sampled groups to log entries: rewards of the scorer, the verdict, log-probabilities of the reference service.

A failed call never becomes a reward of 0: the unanswered samples stay in the group, which `scoring` submits again.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grpc import StatusCode
from grpc.aio import AioRpcError

from gradbus.algorithms import algorithm_of
from gradbus.rpc import describe_rpc_error
from gradbus.spec import RunSpec
from gradbus.telemetry import get_logger
from gradbus.telemetry.busy import BusyTimer
from gradbus.v1.group_pb2 import VERDICT_FILTERED, VERDICT_TRAIN, LogEntry
from gradbus.v1.reference_service_pb2 import ReferenceSequence, SequenceLogProbs
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK, SampleReward, ScoreRequest
from gradbus.v1.weight_store_service_pb2 import GetVersionRequest
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.call_sizes import divided_by_group
from gradbus_conductor.groups.episodes import environment_answer, with_environment
from gradbus_conductor.groups.first_answers import FirstAnswers
from gradbus_conductor.groups.frozen_models import EntryField, EntryModel, FrozenModel, models_of, needs_scores, sequences_of
from gradbus_conductor.groups.pending_group import PendingGroup
from gradbus_conductor.groups.scorer import REFERENCE_SECONDS, RunScorer, RunScorers
from gradbus_conductor.groups.task_kinds import TRAINING, TaskSet
from gradbus_conductor.groups.traces import GroupTraces, ServiceCall

_log = get_logger(__name__)
_FINAL_ANSWERS = {REWARD_STATUS_OK, REWARD_STATUS_INVALID}
_MAX_PERMANENT_FAILURES = 6
"""Of one sample; with the back-off of `scoring` they take 14 s and the time of the calls."""
_REMEMBERED_CALLS = 32
_STORE_SECONDS = 10.0
TakeAnswers = Callable[[PendingGroup, Sequence[SequenceLogProbs]], None]
"""Takes what a frozen model says of each sample of a group."""


def _last_calls() -> deque[tuple[int, float]]:
    return deque(maxlen=_REMEMBERED_CALLS)


@dataclass(slots=True)
class ScoringState:
    """The groups that are waited for, why their scoring fails, and the time that scoring takes."""

    wanted: set[int] = field(default_factory=set)
    """Indexes of groups submitted and neither judged nor forgotten."""
    failing: dict[int, str] = field(default_factory=dict)
    """Index to why the last attempt failed."""
    fault: str = ""
    """Why the run must end: a sample fails again and again, and would go on to. Empty while there is hope."""
    call_seconds: defaultdict[str, deque[tuple[int, float]]] = field(default_factory=lambda: defaultdict(_last_calls))
    """Samples and seconds of the last calls that returned a result, by the section of the scorer."""
    busy: BusyTimer = field(default_factory=BusyTimer)
    """Time with at least one call in flight."""
    scored: BusyTimer = field(default_factory=BusyTimer)
    """Seconds with a reward call in flight; part of `busy`."""
    referenced: BusyTimer = field(default_factory=BusyTimer)
    """Seconds with a reference call in flight; part of `busy`."""
    first_answers: FirstAnswers = field(default_factory=FirstAnswers)

    def fail(self, groups: Iterable[PendingGroup], reason: str) -> list[int]:
        """Notes why scoring failed for the groups that are still wanted; returns their indexes."""
        indexes = [pending.index for pending in groups if pending.index in self.wanted]
        self.failing.update(dict.fromkeys(indexes, reason))
        return indexes

    def fail_permanently(self, pending: PendingGroup, reason: str, sample_id: str = "") -> None:
        """Counts a failure that would happen again: once an attempt, however many calls of the attempt fail."""
        attempts = pending.permanent_failures.setdefault(sample_id, set())
        attempts.add(pending.attempts)
        if pending.index in self.wanted and len(attempts) >= _MAX_PERMANENT_FAILURES:
            self.fault = f"group {pending.index} could not be scored in {_MAX_PERMANENT_FAILURES} attempts: {reason}"


class GroupJudge:
    """Judges batches of groups with one call to each service; a batch that is too large for one takes several.

    A version whose files `tasks` names is evaluated on held-out rows with given responses: it says what their loss is made of,
    log-probabilities or, if it is a reward model, scores.
    """

    def __init__(
        self, clients: Clients, run_id: str, spec: RunSpec, traces: GroupTraces, state: ScoringState, tasks: TaskSet = TRAINING
    ) -> None:
        self._clients = clients
        self._run_id = run_id
        self._spec = spec
        self._algorithm = algorithm_of(spec)
        self._models = models_of(spec, tasks)
        self._version = FrozenModel(version_files=tasks.version_files)
        self._needs_scores = needs_scores(spec, tasks)
        self._needs_logprobs = bool(tasks.version_files) and not self._needs_scores
        self._traces = traces
        self._state = state
        self.scorers = RunScorers(clients, run_id, spec, tasks)

    async def judge(self, batch: Sequence[PendingGroup]) -> dict[int, LogEntry]:
        """The complete entries, by index, of groups with one scorer. The failures of the other groups are noted in the state.

        A group may be in several calls. The call that brings its last answer makes its entry and asks the reference service.
        """
        scored = [pending for pending in batch if pending.entry is not None]
        new = [pending for pending in batch if pending.entry is None]
        if self._needs_scores:
            if self._spec.environment is not None:
                self._mask_failed(new)
            await self._score(new)
        if self._needs_logprobs:
            await self._add_logprobs([pending for pending in new if not pending.has_logprobs])
        needs_scores, needs_logprobs = self._needs_scores, self._needs_logprobs
        for pending in new:
            if pending.entry is None and (pending.is_answered or not needs_scores) and (not needs_logprobs or pending.has_logprobs):
                pending.entry = self._entry(pending)
                scored.append(pending)
        for name, model in self._models.items():
            await self._add_field(scored, name, model)
        return self.complete(scored)

    def complete(self, batch: Iterable[PendingGroup]) -> dict[int, LogEntry]:
        """The entries of `batch` that lack nothing, by index."""
        return {pending.index: pending.entry for pending in batch if pending.entry is not None and self._is_complete(pending.entry)}

    async def _score(self, batch: Sequence[PendingGroup]) -> None:
        asked = {pending.ids[n]: (pending, n) for pending in batch for n in pending.unanswered()}
        if not asked:
            return
        scorer = self.scorers.of(batch[0].index)
        with self._traces.call("score", (pending.index for pending in batch)) as call, self._state.scored:
            try:
                for request in scorer.requests(batch, call):
                    results = await self._scored(scorer, request)
                    self._take_answers([asked[sample.sample_id] for sample in request.samples], results, call)
            except AioRpcError as error:
                _log.warning("scorer_unreachable", run_id=self._run_id, code=error.code().name, detail=error.details())
                reason = describe_rpc_error(scorer.service, scorer.address, error)
                self._fail([pending for pending in batch if not pending.is_answered], reason, call)

    async def _scored(self, scorer: RunScorer, request: ScoreRequest) -> dict[str, SampleReward]:
        """The results of one call, by sample id. Raises AioRpcError."""
        began = time.monotonic()
        with self._state.first_answers.call(scorer.name, scorer.timeout) as is_first:
            response = await scorer.stub.Score(request, timeout=scorer.timeout, wait_for_ready=is_first)
        if any(result.status in _FINAL_ANSWERS for result in response.results):
            self._state.call_seconds[scorer.reward_json].append((len(request.samples), time.monotonic() - began))
            self._state.first_answers.scored.add(scorer.reward_json)
        return {result.sample_id: result for result in response.results}

    def _take_answers(self, asked: Sequence[tuple[PendingGroup, int]], results: Mapping[str, SampleReward], call: ServiceCall) -> None:
        failed: set[int] = set()
        groups: dict[int, PendingGroup] = {}
        for pending, n in asked:
            sample_id = pending.ids[n]
            groups[pending.index] = pending
            result = results.get(sample_id)
            if result is not None and result.status in _FINAL_ANSWERS:
                pending.answers.setdefault(sample_id, result)  # another call may have brought one
                continue
            reason = f"the scorer on sample {sample_id}: {result.reason if result is not None else 'no answer for the sample'}"
            if result is not None and result.permanent:
                self._state.fail_permanently(pending, reason, sample_id)
            if pending.index not in failed:
                failed.add(pending.index)  # the first failure of a group is the cause, later ones may only follow from it
                self._fail([pending], reason, call)
        for index, pending in groups.items():
            call.answered(index, (pending.answers[sample_id] for sample_id in pending.ids if sample_id in pending.answers))

    def _entry(self, pending: PendingGroup) -> LogEntry:
        group = pending.group
        if self._spec.environment is not None:
            self._add_outcomes(pending)
        advantages = self._algorithm.group_advantages(pending.samples, pending.answers)
        return LogEntry(
            index=group.index,
            verdict=VERDICT_FILTERED if advantages.filtered else VERDICT_TRAIN,
            reason=advantages.reason,
            group=group.SerializeToString(),
            rewards=[pending.answers[sample_id] for sample_id in pending.ids if sample_id in pending.answers],
            version=group.version,
        )

    def _mask_failed(self, batch: Iterable[PendingGroup]) -> None:
        """A scorer is not asked about episodes that failed."""
        for pending in batch:
            for sample in pending.samples:
                if (answer := environment_answer(sample)).status == REWARD_STATUS_INVALID:
                    pending.answers[sample.sample_id] = answer

    def _add_outcomes(self, pending: PendingGroup) -> None:
        """The rewards of the environment, added to the scorer's if there is one."""
        for sample in pending.samples:
            scored = pending.answers.get(sample.sample_id)
            pending.answers[sample.sample_id] = environment_answer(sample) if scored is None else with_environment(sample, scored)

    def _is_complete(self, entry: LogEntry) -> bool:
        return entry.verdict != VERDICT_TRAIN or all(getattr(entry, name) for name in self._models)

    async def _add_logprobs(self, lacking: Sequence[PendingGroup]) -> None:
        """The version's log-probabilities take the place of those of a policy that sampled."""

        def take(pending: PendingGroup, answers: Sequence[SequenceLogProbs]) -> None:
            for sample, answer in zip(pending.group.samples, answers, strict=True):
                sample.logprobs = answer.logprobs

        await self._ask(lacking, self._version, take)

    async def _add_field(self, batch: Sequence[PendingGroup], name: EntryField, asked: EntryModel) -> None:
        """What a frozen model of the run says of the samples of entries that are trained."""
        lacking = [pending for pending in batch if (entry := pending.entry) and entry.verdict == VERDICT_TRAIN and not getattr(entry, name)]

        def take(pending: PendingGroup, answers: Sequence[SequenceLogProbs]) -> None:
            if (entry := pending.entry) is None:
                return
            if name != "behaviour_rows":
                getattr(entry, name).extend(answer.logprobs for answer in answers)
            if asked.model.top_k:
                rows = entry.behaviour_rows if name == "behaviour_rows" else entry.teacher_rows
                rows.extend(answer.rows for answer in answers)

        for version, groups in asked.by_version(lacking).items():
            if (model := asked.model if not version else await self._at(version, groups, asked)) is not None:
                await self._ask(groups, model, take)

    async def _at(self, version: int, groups: Sequence[PendingGroup], asked: EntryModel) -> FrozenModel | None:
        """The version that answers for these groups; None, which is noted, if its files are not known at present."""
        request = GetVersionRequest(run_id=self._run_id, step=version)
        try:
            found = await self._clients.weight_store.GetVersion(request, timeout=_STORE_SECONDS)
        except AioRpcError as error:
            reason = describe_rpc_error("the weight store", self._clients.addresses.weight_store, error)
            self._state.fail(groups, f"version {version}, which the samples are compared with: {reason}")
            return None
        return asked.of_version([shard.digest for shard in found.manifest.shards])

    async def _ask(self, lacking: Sequence[PendingGroup], model: FrozenModel, take: TakeAnswers) -> None:
        """What the model says of all samples of a group goes to `take`, call by call. Failures are noted."""
        if not lacking:
            return
        with self._traces.call("reference", (pending.index for pending in lacking)) as call, self._state.referenced:
            found: dict[str, SequenceLogProbs] = {}
            waiting = lacking
            try:
                for part in divided_by_group((sequences_of(pending.group) for pending in lacking), 1 + 2 * model.top_k):
                    found |= await self._answers(part, model)
                    waiting = [pending for pending in waiting if not _taken(pending, model, found, take)]
            except AioRpcError as error:
                _log.warning("reference_unreachable", run_id=self._run_id, code=error.code().name, detail=error.details())
                reason = describe_rpc_error("the reference service", self._clients.addresses.reference, error)
                self._fail(waiting, reason, call)
                if error.code() is StatusCode.FAILED_PRECONDITION:
                    # It is there, and cannot compute with this model or these tokens.
                    for pending in waiting:
                        self._state.fail_permanently(pending, reason)
            else:
                if waiting:
                    self._fail(waiting, "the reference service left log-probabilities out", call)

    async def _answers(self, sequences: Sequence[ReferenceSequence], model: FrozenModel) -> dict[str, SequenceLogProbs]:
        """The answers of one call, by sample id. Raises AioRpcError."""
        request = model.request(self._run_id, self._spec.rollout.temperature, sequences)
        service = f"the reference service at {self._clients.addresses.reference}"
        with self._state.first_answers.call(service, REFERENCE_SECONDS) as is_first:
            response = await self._clients.reference.LogProbs(request, timeout=REFERENCE_SECONDS, wait_for_ready=is_first)
        return {result.sample_id: result for result in response.results}

    def _fail(self, groups: Iterable[PendingGroup], reason: str, call: ServiceCall) -> None:
        call.failed(self._state.fail(groups, reason), reason)


def _taken(pending: PendingGroup, model: FrozenModel, found: dict[str, SequenceLogProbs], take: TakeAnswers) -> bool:
    """Whether all answers of the group are there; then they go to `take`, and out of `found`: a teacher's rows are large."""
    if (answers := model.answers(pending.group, found)) is None:
        return False
    take(pending, answers)
    for sequence in sequences_of(pending.group):
        found.pop(sequence.sample_id, None)
    return True
