"""Dynamic sampling: steps and versions are a function of the verdicts, whatever arrives when, and whoever dies."""

from dataclasses import dataclass, field
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.spec import ScheduleSpec, parse_spec
from gradbus.v1.weights_pb2 import Frontier, TrainerProgress
from gradbus_conductor.schedules.base import Ready
from gradbus_conductor.schedules.dynamic_lag import DynamicLag
from gradbus_conductor.schedules.of_run import schedule_for


def spec_of(size, staleness, most, steps):
    schedule = {"max_staleness": staleness, "groups_per_step": size, "steps": steps, "dynamic_sampling": most}
    return parse_spec(
        {"name": "p", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://h:1"}, "schedule": schedule}
    )


def expected(size, most, steps, verdict):
    """The end of each step, by walking over the groups one by one."""
    ends, start = [], 0
    for _ in range(steps):
        trainable = 0
        for index in count(start):
            trainable += verdict(index)
            if trainable == size or index + 1 - start == size * most:
                break
        start = index + 1
        ends.append(start)
    return ends


@dataclass
class Run:
    """A run without services: the schedule under test, a log, and a trainer that keeps its progress by the same rules."""

    spec: object
    verdicts: object
    """Index to whether the group can be trained."""
    log: dict[int, int] = field(default_factory=dict)
    """Index to version."""
    ends: list[int] = field(default_factory=list)
    extents: list[list[int]] = field(default_factory=lambda: [[]])
    """What the trainer has kept after each step."""
    versions: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        self.schedule = schedule_for(self.spec)
        self.rules = DynamicSampling(self.spec.schedule)

    @property
    def step(self):
        return len(self.ends)

    @property
    def start(self):
        return self.ends[-1] if self.ends else 0

    def dispatch(self):
        self.schedule.dispatchable(self.step)
        for index, version in self.schedule.outstanding().items():
            assert self.versions.setdefault(index, version) == version, "a version is the same after any death"

    def admit(self, indexes):
        outstanding = self.schedule.outstanding()
        ready = [Ready(index, outstanding[index], self.verdicts(index)) for index in indexes]
        for index in self.schedule.admit(ready, []).append:
            self.log[index] = outstanding[index]
            self.schedule.appended(index, self.verdicts(index))

    def train(self):
        there = []
        for index in count(self.start):
            if index not in self.log:
                break
            there.append(self.verdicts(index))
        taken = self.rules.taken(there)
        assert self.schedule.is_incomplete(self.step) is (taken is None)
        if taken is None or self.step == self.spec.schedule.steps:
            return
        kept = self.extents[-1]
        extent = self.rules.extent(self.step, self.start, max([self.start, *kept]), there[:taken])
        for index in range(self.start, self.start + taken):
            if self.verdicts(index):
                assert 0 <= self.step - self.log[index] <= self.spec.schedule.max_staleness
        self.extents.append(list(self.rules.kept([*kept, extent])))
        self.ends.append(self.start + taken)

    def restart(self, checkpoint, *, trims, dies):
        """A conductor takes over (or reads all again) and the trainer goes back to a checkpoint."""
        self.ends, self.extents = self.ends[:checkpoint], self.extents[: checkpoint + 1]
        entries = [(index, self.verdicts(index)) for index in self.log if not (trims and index < self.start)]
        if dies:
            self.schedule = schedule_for(self.spec)
        frontier = Frontier(below=self.start, extents=self.extents[-1])
        self.schedule.recover(entries, TrainerProgress(step=checkpoint, frontier=frontier))
        assert all(index < self.schedule.next_group for index, _ in entries), "a group of the log was dispatched"


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(2, 4),
    st.integers(1, 6),
    st.integers(0, 2**100),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.booleans(), st.booleans()), max_size=4),
    st.randoms(use_true_random=False),
)
def test_steps_and_versions_are_a_function_of_the_verdicts(size, staleness, most, steps, bits, restarts, random):
    run = Run(spec_of(size, staleness, most, steps), lambda index: bool(bits >> index & 1))
    for moment in range(300):
        run.dispatch()
        outstanding = sorted(run.schedule.outstanding())
        if outstanding:
            run.admit(random.sample(outstanding, random.randint(1, len(outstanding))))
        run.train()
        for at, back, trims, dies in restarts:
            if at == moment:
                run.restart(max(0, run.step - back), trims=trims, dies=dies)
        if run.step == steps:
            break
    assert run.ends == expected(size, most, steps, run.verdicts)
    in_order = Run(run.spec, run.verdicts)
    while in_order.step < steps:
        in_order.dispatch()
        in_order.admit(list(in_order.schedule.outstanding()))
        in_order.train()
    assert {index: run.versions[index] for index in range(run.start)} == {index: in_order.versions[index] for index in range(run.start)}


def test_without_filtered_groups_it_samples_as_a_fixed_lag_does():
    run = Run(spec_of(3, 2, 4, 8), lambda _: True)
    while run.step < 8:
        run.dispatch()
        run.admit(list(run.schedule.outstanding()))
        run.train()
    assert run.versions == {index: max(0, index // 3 - 2) for index in range(24)}


def test_filtered_groups_are_replaced_by_as_many_as_should_give_what_lacks():
    run = Run(spec_of(8, 1, 8, 4), lambda index: index % 4 == 0)
    run.dispatch()
    assert sorted(run.schedule.outstanding()) == list(range(16))
    run.admit(list(range(15)))
    run.dispatch()
    assert list(run.schedule.outstanding()) == [15]
    run.admit([15])
    run.dispatch()  # 4 of 16 can be trained, so that 4 more need 16, of which no more than 12 could be trained by step 0 or 1
    assert list(run.schedule.outstanding()) == list(range(16, 28))
    assert set(run.schedule.outstanding().values()) == {0}


def test_on_policy_samples_are_replaced_one_by_one():
    run = Run(spec_of(4, 0, 4, 2), lambda index: index % 2 == 0)
    waves = []
    while run.step == 0:
        run.dispatch()
        waves.append(list(run.schedule.outstanding()))
        run.admit(waves[-1])
        run.train()
    assert waves == [[0, 1, 2, 3], [4, 5], [6]]
    assert run.ends == [7]


def test_a_step_that_finds_too_few_groups_trains_those():
    run = Run(spec_of(2, 1, 3, 3), lambda _: False)
    while run.step < 3:
        run.dispatch()
        run.admit(list(run.schedule.outstanding()))
        run.train()
    assert run.ends == [6, 12, 18]
    assert run.schedule.outstanding() == {}


@pytest.mark.parametrize(("verdicts", "taken"), [([True, False, True], 3), ([True, False], None), ([False] * 4, 4), ([], None)])
def test_a_step_ends_with_its_last_trainable_group_or_at_its_bound(verdicts, taken):
    schedule = ScheduleSpec(groups_per_step=2, steps=5, dynamic_sampling=2)
    assert DynamicSampling(schedule).taken(verdicts) == taken
    assert isinstance(schedule_for(spec_of(2, 1, 2, 5)), DynamicLag)


def test_a_group_that_was_trained_and_is_lost_does_not_hold_the_run():
    """The log loses a trained group, a conductor recovers from an older checkpoint, and the group's version is gone since."""
    spec = spec_of(1, 1, 2, 8)
    schedule = schedule_for(spec)
    schedule.dispatchable(3)
    entries = [(index, True) for index in range(5) if index != 2]
    schedule.recover(entries, TrainerProgress(step=1, frontier=Frontier(below=1, extents=[2])))
    schedule.dispatchable(5)
    assert 2 in schedule.outstanding()
    assert schedule.is_incomplete(5)
    assert not schedule.is_incomplete(5, below=5), "the trainer is past it: its report is to be believed"
    schedule.recover(entries, TrainerProgress(step=5, frontier=Frontier(below=5, extents=[6])))
    assert 2 not in schedule.outstanding()
    assert 5 in schedule.outstanding()
