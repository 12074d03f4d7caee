"""What a run's scorers are asked, and where: the reward service, or the reference service for a reward model or a version of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gradbus.algorithms import sequences
from gradbus.spec import RewardChange, RewardSpec, RunSpec
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreSample
from gradbus.v1.sample_pb2 import FINISH_REASON_STOP, Fork
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.call_sizes import divided, divided_by_group, fits_one_call
from gradbus_conductor.groups.pending_group import PendingGroup
from gradbus_conductor.groups.task_kinds import TaskSet
from gradbus_conductor.groups.traces import ServiceCall

if TYPE_CHECKING:
    from gradbus.v1.reward_service_pb2_grpc import RewardServiceAsyncStub

REFERENCE_SECONDS: Final = 120.0
"""Deadline of a call to the reference service, which may have to load the model."""
_EXTRA_SECONDS: Final = 5.0  # the reward service's own deadline comes first, so that its answer names the sample that hung


@dataclass(frozen=True, slots=True)
class RunScorer:
    """The scorer of a run."""

    stub: RewardServiceAsyncStub
    service: str
    address: str
    name: str
    """For the status while its first call lasts."""
    timeout: float
    """Seconds of a call."""
    run_id: str
    reward_json: str = ""
    """Empty for a reward model, which gets tokens instead of texts."""
    is_users: bool = False
    """Whether it is a service of the user's own, which may hang now and then."""
    version_files: Sequence[str] = ()
    """Of the version that scores, in the evaluation of a run that trains a reward model."""

    @classmethod
    def of(cls, clients: Clients, run_id: str, reward: RewardSpec, version_files: Sequence[str] = ()) -> RunScorer:
        """The scorer that the section names, or the version of these files."""
        addresses = clients.addresses
        if reward.model is not None or version_files:
            name = f"the reward model, in the reference service at {addresses.reference}"
            timeout = max(reward.timeout_seconds, REFERENCE_SECONDS)
            stub, service = clients.reward_model, "the reference service"
            return cls(stub, service, addresses.reference, name, timeout, run_id, version_files=version_files)
        name = f"the scorer at {reward.service}" if reward.service else f"the grader, in the reward service at {addresses.reward}"
        timeout, section = reward.timeout_seconds + _EXTRA_SECONDS, reward.model_dump_json(exclude={"model", "changes"})
        is_users = reward.service is not None
        return cls(clients.reward, "the reward service", addresses.reward, name, timeout, run_id, section, is_users)

    def requests(self, batch: Sequence[PendingGroup], call: ServiceCall) -> Iterator[ScoreRequest]:
        """What each call sends; a request is made when its call is."""
        if not self.reward_json:
            # By whole groups: the bits of a group's scores depend on no other group.
            for part in divided_by_group(_token_samples(pending, call) for pending in batch):
                yield ScoreRequest(run_id=self.run_id, samples=part, version_files=self.version_files)
            return
        samples = (fields for pending in batch for fields in _text_samples(pending, call))
        if fits_one_call(sum(pending.characters for pending in batch)):
            request = ScoreRequest(run_id=self.run_id, reward_json=self.reward_json)
            add = request.samples.add  # in the request's own memory: samples made alone cost twice as much, and are copied
            for fields in samples:
                add(**fields)
            yield request
        else:
            for part in divided([ScoreSample(**fields)] for fields in samples):
                yield ScoreRequest(run_id=self.run_id, reward_json=self.reward_json, samples=part)


class RunScorers:
    """The scorers of a run, one after the other by the groups that they judge."""

    def __init__(self, clients: Clients, run_id: str, spec: RunSpec, tasks: TaskSet) -> None:
        self._clients = clients
        self._run_id = run_id
        self._tasks = tasks
        self._groups_per_step = spec.schedule.groups_per_step
        self._set(spec.reward)

    def of(self, index: int) -> RunScorer:
        """The scorer of a group."""
        if not self._reward.changes:
            return self._scorers[0]
        return self._scorers[self._tasks.turn(self._reward, index, self._groups_per_step)]

    def change(self, change: RewardChange) -> None:
        """Adds a scorer, which judges groups from one on that nobody has asked for yet."""
        self._set(self._reward.with_change(change))

    def _set(self, reward: RewardSpec) -> None:
        self._reward = reward
        self._scorers = [RunScorer.of(self._clients, self._run_id, section, self._tasks.version_files) for section in reward.in_turn]


def _text_samples(pending: PendingGroup, call: ServiceCall) -> Iterator[dict[str, Any]]:
    """The fields of what a scorer gets of a group: the samples that it has not judged."""
    shared = {
        "group_id": str(pending.index),
        "prompt": pending.group.prompt_text,
        "item_json": pending.item,
        "traceparent": call.spans.get(pending.index, ""),
    }
    for n in pending.unanswered():
        sample = pending.samples[n]
        yield {
            "sample_id": pending.ids[n],
            "response": sample.text,
            "finish_reason": "stop" if sample.finish_reason == FINISH_REASON_STOP else "length",
            "weight_version": pending.versions[n],
            **shared,
        }


def _token_samples(pending: PendingGroup, call: ServiceCall) -> Iterator[ScoreSample]:
    """What a reward model gets of a group: the samples that it has not judged, or the last sequence of one with forks."""
    for n in pending.unanswered():
        part = sequences(pending.samples[n])[-1]
        yield ScoreSample(
            sample_id=pending.ids[n],
            group_id=str(pending.index),
            traceparent=call.spans.get(pending.index, ""),
            prompt_ids=part.prompt_ids if isinstance(part, Fork) else pending.group.prompt_ids,
            token_ids=part.token_ids,
        )
