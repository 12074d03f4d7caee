"""The steps that are told from the log's verdicts are the ones that the trainer takes, in every schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.experience.steps import step_teller
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.groups import DecodedGroup, LoggedGroup

SCHEDULES = {
    "fixed_lag": {"mode": "fixed_lag"},
    "free": {"mode": "free"},
    "dynamic": {"mode": "fixed_lag", "dynamic_sampling": 3},
}
TRAIN = Verdict.VERDICT_TRAIN
VERDICTS = st.sampled_from([TRAIN, TRAIN, Verdict.VERDICT_FILTERED, Verdict.VERDICT_DROPPED])


def taken_by_the_trainer(spec, order, verdicts):
    """Index to step, by the collector."""
    frontier = Frontier()
    collector, steps, step = collector_for(spec, frontier), {}, 0
    for index in order:
        collector.add(LoggedGroup(LogEntry(index=index, verdict=verdicts[index]), f"{index}", 0, DecodedGroup()))
        while (groups := collector.take(step)) is not None:
            steps |= {group.entry.index: step for group in groups}
            frontier.add(step, [(group.entry.index, group.digest) for group in groups])
            step += 1
    return steps


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@given(data=st.data())
def test_the_told_steps_are_the_taken_ones(schedule, data):
    body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    spec = RunSpec.model_validate(body | {"schedule": {"max_staleness": 1, "groups_per_step": 2, "steps": 40, **schedule}})
    order = data.draw(st.permutations(range(data.draw(st.integers(1, 14)))))
    verdicts = {index: data.draw(VERDICTS) for index in order}
    teller = step_teller(spec.schedule)
    told = {of: step for index in order for of, step in teller.add(index, verdicts[index] == TRAIN)}
    taken = taken_by_the_trainer(spec, order, verdicts)
    assert {index: told[index] for index in taken} == taken
    waiting = {told[index] for index in told.keys() - taken.keys()}
    assert all(step not in taken.values() for step in waiting), "a group that was not taken belongs to a later step"
