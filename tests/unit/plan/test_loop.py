"""The simulated loop: limits that are known exactly, times that are found again, and what more workers change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.plan.loop import Loop, LoopTimes, Pace, advise, bottleneck, simulate, times_of
from gradbus.spec import parse_spec

SPEC = {
    "name": "run",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl"},
    "reward": {"grader": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "4"}},
}


def loop(workers=1, staleness=1, groups=8, lengths=(10,) * 4, slots=8, keeps_slots=False):
    return Loop(groups, slots, staleness, keeps_slots, (lengths,) * groups, workers)


loops = st.builds(
    Loop,
    groups=st.just(6),
    slots=st.integers(1, 40),
    max_staleness=st.integers(0, 4),
    keeps_slots=st.booleans(),
    lengths=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8).map(tuple), min_size=6, max_size=18).map(tuple),
    workers=st.integers(1, 8),
)
seconds = st.floats(0.01, 10.0)


def test_a_loop_has_the_schedule_of_its_spec():
    schedule = {"groups_per_step": 12, "steps": 5, "max_staleness": 3}
    fixed = Loop.of(parse_spec(SPEC | {"schedule": schedule, "rollout": {"slots": 7}}), [(1, 2)], 2)
    assert (fixed.groups, fixed.slots, fixed.max_staleness, fixed.keeps_slots, fixed.workers) == (12, 7, 3, False, 2)
    assert Loop.of(parse_spec(SPEC | {"schedule": schedule | {"mode": "free"}}), [(1, 2)], 2).keeps_slots


def test_each_sample_takes_the_first_free_slot_of_its_worker():
    three = Loop(3, 2, 1, False, ((5, 1), (1, 1), (4, 9)), 1)
    assert three.work == ((14,),), "5 and 9 in one slot, 1, 1, 1 and 4 in the other"
    assert replace(three, workers=3).work == ((5, 1, 9),)
    assert replace(three, workers=2).work == ((5, 9),), "two groups for the first"
    assert replace(three, workers=8).work == ((5, 1, 9),), "five have nothing to do"


def test_slots_that_versions_keep_full_cost_the_work_alone():
    assert Loop(2, 4, 1, True, ((5, 1), (1, 2)), 1).work == ((3,),)


@given(loops, seconds, seconds, seconds, seconds)
def test_the_slowest_of_three_sets_the_pace_of_equal_steps(base, token, train, load, between):
    """A step cannot be faster than its training, than a worker's share, or than a round trip divided by the versions in flight."""
    same = replace(base, lengths=base.lengths[: base.groups])
    longest = load + max(same.work[0]) * token
    expected = max(train, longest, (train + longest + between) / (same.max_staleness + 1))
    assert simulate(same, LoopTimes(token, train, load, between)).step == pytest.approx(expected, rel=0.02)


@given(loops, seconds, seconds, seconds, seconds)
def test_the_times_of_a_pace_go_as_fast_as_it(base, token, train, load, between):
    seen = simulate(base, LoopTimes(token, train, load, between))
    again = simulate(base, times_of(base, seen))
    assert again.step == pytest.approx(seen.step, rel=0.021)
    assert again.busy == pytest.approx(seen.busy, rel=0.03)


def test_a_way_that_sampling_hides_is_taken_to_be_short():
    """Samples take four seconds, so that between 0 and 3.5 s nothing would change; then a second rollout is worth most."""
    seen = simulate(loop(), LoopTimes(token=0.1, train=0.5, load=0.0, between=1.0))
    assert times_of(loop(), seen).between == 0.0


def test_without_staleness_everything_comes_one_after_the_other():
    pace = simulate(loop(staleness=0), LoopTimes(token=0.1, train=2.0, load=0.5, between=1.5))
    assert (pace.step, pace.busy, pace.waits, pace.loads) == pytest.approx((8.0, 4 / 8, 6 / 8, 0.5 / 8))


def test_a_second_worker_halves_a_step_that_waits_for_samples():
    times = LoopTimes(token=0.1, train=0.5, load=0.0, between=0.1)
    fewer_steps = {advice.workers: advice for advice in advise(loop(), times)}
    assert fewer_steps[2].step == pytest.approx(2.0)
    assert fewer_steps[2].gain == pytest.approx(1.0)
    assert [advice.workers for advice in advise(loop(2), times)] == [1, 3, 4, 5, 6]
    assert next(advise(loop(2), times)).gain == pytest.approx(-0.5), "against two"


def test_a_worker_that_shortens_nothing_is_worth_nothing():
    assert [advice.gain for advice in advise(loop(), LoopTimes(0.001, 1.0, 0.0, 0.0))] == pytest.approx([0.0] * 4)


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ((0.1, 0.5, 0.1, 0.1), "token"),
        ((0.01, 2.0, 0.1, 0.1), "train"),
        ((0.01, 0.5, 3.0, 0.1), "load"),
        ((0.01, 0.1, 0.1, 9.0), "between"),
    ],
)
def test_the_limit_is_what_a_step_would_gain_most_by(times, found):
    assert bottleneck(loop(), LoopTimes(*times)) == found


def test_a_run_that_did_nothing_yet_breaks_nothing():
    nothing = Pace(0.0, 0.0, 0.0, 0.0)
    assert simulate(loop(), times_of(loop(), nothing)) == nothing
    assert [advice.gain for advice in advise(loop(), LoopTimes(0.0, 0.0, 0.0, 0.0))] == [0.0] * 4
