"""Whatever the order of readiness, deadlines, crashes and training: both schedules keep their promises.

`SimulatedRun` is a run without services: the schedule under test, a log, and a trainer that trains what the log holds.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gradbus.spec import RunSpec, parse_spec
from gradbus.v1.weights_pb2 import Frontier, TrainerProgress
from gradbus_conductor.schedules.base import Ready
from gradbus_conductor.schedules.of_run import schedule_for


@dataclass(frozen=True)
class Entry:
    index: int
    version: int
    verdict: str

    @property
    def trainable(self):
        return self.verdict == "train"


@dataclass
class SimulatedRun:
    """Every change of the log is checked against the rules at the moment it happens."""

    spec: RunSpec
    log: list[Entry] = field(default_factory=list)
    head: int = 0
    sampled: dict[int, Ready] = field(default_factory=dict)
    recovered: bool = False
    was_late: bool = False

    def __post_init__(self):
        self.schedule = schedule_for(self.spec)

    @property
    def free(self):
        return self.spec.schedule.mode == "free"

    @property
    def missing(self):
        """Dispatched, and nobody has answered."""
        return [index for index in self.schedule.outstanding() if index not in self.sampled]

    @property
    def position(self):
        """Positions of the log that are taken: trainable entries in `free`, all of them in `fixed_lag`."""
        return sum(entry.trainable or not self.free for entry in self.log)

    def dispatch(self):
        for item in self.schedule.dispatchable(self.head):
            assert item.version <= self.spec.oldest_allowed_version(item.index // self.size) if not self.free else item.version == self.head
        if self.free and not self.recovered:
            bound = (self.spec.schedule.max_staleness + 1) * self.size
            assert len(self.schedule.outstanding()) + self.position - self.head * self.size <= bound

    @property
    def size(self):
        return self.spec.schedule.groups_per_step

    def sample(self, index, newer=0, trainable=True):
        dispatched = self.schedule.outstanding()[index]
        version = min(self.head, dispatched + newer) if self.free else dispatched
        self.sampled[index] = Ready(index, version, trainable)

    def admit(self, late=()):
        self.was_late = self.was_late or bool(late)
        outstanding = dict(self.schedule.outstanding())
        ready = [group for index, group in self.sampled.items() if index in outstanding]
        admission = self.schedule.admit(ready, late)
        assert len(set(admission.append)) == len(admission.append)
        assert not set(admission.append) & set(admission.drop)
        for index in admission.append:
            group = self.sampled.pop(index)
            self._append(Entry(index, group.version, "train" if group.trainable else "filtered"))
        for index, reason in admission.drop.items():
            self._check_drop(index, reason, late)
            self.sampled.pop(index, None)
            self._append(Entry(index, outstanding[index], "dropped"))
        return admission

    def _append(self, entry):
        assert entry.index not in {known.index for known in self.log}
        if entry.trainable:
            step = self.position // self.size if self.free else entry.index // self.size
            assert entry.version >= step - self.spec.schedule.max_staleness
            assert step < self.spec.schedule.steps
        self.log.append(entry)
        self.schedule.appended(entry.index, entry.trainable)

    def _check_drop(self, index, reason, late):
        assert self.free
        if reason == "deadline":
            assert index in late
            assert index not in self.sampled
        elif reason == "stale":
            assert self.sampled[index].version < self.position // self.size - self.spec.schedule.max_staleness
            assert self.was_late or self.recovered
        else:
            assert reason == "end of run"
            assert self.position >= self.spec.total_groups

    def train(self):
        if self.head < self.spec.schedule.steps:
            is_there = self.consumed(self.head + 1) is not None
            assert self.schedule.is_incomplete(self.head) is not is_there
            self.head += is_there

    def consumed(self, steps):
        """Log entries that the first `steps` steps consume; None while some are missing."""
        if not self.free:
            wanted = [entry for entry in self.log if entry.index < steps * self.size]
            return wanted if len(wanted) == steps * self.size else None
        positions = [at for at, entry in enumerate(self.log) if entry.trainable]
        if len(positions) < steps * self.size:
            return None
        return self.log[: positions[steps * self.size - 1] + 1] if steps else []

    def restart(self, checkpoint, trims, kept):
        """A conductor's death: what is left is the log, the checkpoint and the groups `kept` in the buffer."""
        trained = {entry.index for entry in self.consumed(checkpoint) or []}
        below = next(index for index in range(len(trained) + 1) if index not in trained)
        entries = [(entry.index, entry.trainable) for entry in self.log if not (trims and entry.index in trained)]
        self.schedule = schedule_for(self.spec)
        frontier = Frontier(below=below, above=[index for index in trained if index > below])
        self.schedule.recover(entries, TrainerProgress(step=checkpoint, frontier=frontier))
        assert all(index < self.schedule.next_group for index, _ in entries), "a group of the log was dispatched"
        self.sampled = {index: self.sampled[index] for index in kept if index in self.schedule.outstanding()}
        self.recovered = True


def spec_of(mode, staleness, size, steps):
    schedule = {"mode": mode, "max_staleness": staleness, "groups_per_step": size, "steps": steps}
    return parse_spec(
        {"name": "p", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://h:1"}, "schedule": schedule}
    )


class ScheduleMachine(RuleBasedStateMachine):
    mode = "free"

    @initialize(staleness=st.integers(0, 3), size=st.integers(1, 4), steps=st.integers(1, 5))
    def start(self, staleness, size, steps):
        self.run = SimulatedRun(spec_of(self.mode, staleness, size, steps))

    @rule()
    def dispatch(self):
        self.run.dispatch()

    @rule(data=st.data(), newer=st.integers(0, 3), trainable=st.sampled_from([True, True, True, False]))
    def sample(self, data, newer, trainable):
        if self.run.missing:
            self.run.sample(data.draw(st.sampled_from(self.run.missing)), newer, trainable)

    @rule()
    def admit(self):
        self.run.admit()

    @rule(data=st.data())
    def admit_with_late_ones(self, data):
        if self.run.missing:
            self.run.admit(data.draw(st.lists(st.sampled_from(self.run.missing), unique=True)))

    @rule()
    def train(self):
        self.run.train()

    @rule(data=st.data(), trims=st.booleans())
    def restart(self, data, trims):
        checkpoint = data.draw(st.integers(0, self.run.head))
        kept = data.draw(st.lists(st.sampled_from(sorted(self.run.sampled)), unique=True)) if self.run.sampled else []
        self.run.restart(checkpoint, trims, kept)

    @rule()
    def all_at_hand_or_late_is_progress(self):
        """With nothing left to wait for, admission moves the log on, or the step is the trainer's already."""
        before = len(self.run.log)
        self.run.dispatch()
        outstanding = len(self.run.schedule.outstanding())
        self.run.admit(self.run.missing)
        waits_for_samples = not self.run.free and not self.run.sampled
        assert len(self.run.log) > before or not outstanding or waits_for_samples

    def teardown(self):
        if hasattr(self, "run"):
            finish(self.run)


def finish(run):
    """Groups that nobody has answered by now never come (in `free`); later ones do. Every index ends exactly once."""
    hung = set(run.missing) if run.free else set()
    for _ in range(100):
        run.dispatch()
        for index in run.missing:
            if index not in hung:
                run.sample(index)
        run.admit([index for index in run.missing if index in hung])
        run.train()
        if run.head == run.spec.schedule.steps:
            break
    assert run.head == run.spec.schedule.steps
    left = set(run.schedule.outstanding())
    ended = [entry.index for entry in run.log]
    assert sorted([*ended, *left]) == list(range(len(ended) + len(left)))
    assert run.free or not left


class FixedLagMachine(ScheduleMachine):
    mode = "fixed_lag"


TestFree = ScheduleMachine.TestCase
TestFree.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFixedLag = FixedLagMachine.TestCase
TestFixedLag.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_an_overtaken_group_keeps_its_position():
    run = SimulatedRun(spec_of("free", 2, 2, 5))
    run.dispatch()
    for index in (0, 1):
        run.sample(index)
    run.admit()
    run.train()
    run.dispatch()
    for index in (6, 7):
        run.sample(index)
    # Steps 1 and 2 have four positions, and the four groups of version 0 still under way may take no others.
    assert run.admit().append == []
    for index in (2, 3, 4, 5):
        run.sample(index)
    assert run.admit().append == [2, 3, 4, 5, 6, 7]


def test_a_hung_worker_does_not_hold_the_first_step_for_ever():
    run = SimulatedRun(spec_of("free", 1, 2, 3))
    run.dispatch()
    # Nothing else can fill step 0, so as many late groups go as it has positions; the others may still come for step 1.
    assert run.admit(late=[0, 1, 2, 3]).drop == {0: "deadline", 1: "deadline"}


def test_filtered_groups_take_no_position_in_a_free_step():
    run = SimulatedRun(spec_of("free", 0, 2, 2))
    run.dispatch()
    run.sample(0, trainable=False)
    run.sample(1)
    run.admit()
    run.train()
    assert run.head == 0
    run.dispatch()
    assert run.missing == [2]


@pytest.mark.parametrize("mode", ["free", "fixed_lag"])
def test_nothing_is_dispatched_that_no_step_could_train(mode):
    run = SimulatedRun(spec_of(mode, 3, 2, 2))
    run.dispatch()
    assert len(run.schedule.outstanding()) == 4
