"""A step's trace: links to its groups, replays, failures."""

import pytest

from gradbus.telemetry import current_traceparent, group_trace, is_sampled, span, step_trace
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.gradient_step import PhaseClock
from gradbus_trainer.step.groups import DecodedGroup, LoggedGroup
from gradbus_trainer.telemetry.step_traces import StepSampler, StepTraces


def collected(index, traceparent="", verdict=Verdict.VERDICT_TRAIN):
    return LoggedGroup(LogEntry(index=index, verdict=verdict, traceparent=traceparent), "digest", 1, DecodedGroup(), written=5)


def groups(*indexes):
    return [collected(index, group_trace("run", index)) for index in indexes]


def trained(traces, items, step=0):
    phases = PhaseClock()
    with traces.step(step) as trace, trace.training(items):
        for name in ("forward", "backward", "optimise"):
            with phases(name):
                pass
        trace.trained(StepMetrics(noop=False, learning_rate=0.0, phases=phases.recorded))
        trace.exported()
        with span("publish_version"):
            return current_traceparent()


def trace_id(traceparent):
    return int(traceparent.split("-")[1], 16)


def test_a_step_and_its_groups_link_to_each_other(finished_spans):
    published = trained(StepTraces("run", 2, StepSampler()), [*groups(1, 2), collected(3)])
    root = trace_id(step_trace("run", 0, 2))
    assert trace_id(published) == root
    step = [one for one in finished_spans() if one.context.trace_id == root]
    assert sorted(one.name for one in step) == ["backward", "export", "forward", "optimise", "publish_version", "read", "train_step"]
    (read,) = [one for one in step if one.name == "read"]
    assert [link.context.trace_id for link in read.links] == [trace_id(group_trace("run", index)) for index in (1, 2)]
    (whole,) = [one for one in step if one.name == "train_step"]
    assert (whole.attributes["gradbus.groups"], whole.attributes["gradbus.groups.linked"]) == (3, 2)
    for index in (1, 2):
        mine = [one for one in finished_spans() if one.context.trace_id == trace_id(group_trace("run", index))]
        assert [one.name for one in mine] == ["wait_in_log", "train"]
        assert [[link.context.trace_id for link in one.links] for one in mine] == [[root]] * 2
        assert mine[0].start_time == 5


def test_more_groups_than_a_span_can_link_are_spread_over_several(finished_spans):
    trained(StepTraces("run", 2, StepSampler()), groups(*range(300)))
    reads = [one for one in finished_spans() if one.name == "read"]
    assert [len(one.links) for one in reads] == [128, 128, 44]
    assert len({link.context.trace_id for one in reads for link in one.links}) == 300


def test_a_group_that_is_not_trained_waits_but_is_not_in_the_step(finished_spans):
    trained(StepTraces("run", 2, StepSampler()), [collected(1, group_trace("run", 1), Verdict.VERDICT_FILTERED)])
    assert [one.name for one in finished_spans() if one.context.trace_id == trace_id(group_trace("run", 1))] == ["wait_in_log"]


def test_a_trainer_that_comes_back_leaves_two_whole_traces_and_one_more_part_of_the_groups(finished_spans):
    for term in (2, 3):
        trained(StepTraces("run", term, StepSampler()), groups(1))
    for term in (2, 3):
        step = [one for one in finished_spans() if one.context.trace_id == trace_id(step_trace("run", 0, term))]
        assert len([one for one in step if one.parent is None]) == 1
    parts = [one for one in finished_spans() if one.name == "train"]
    assert [one.attributes["gradbus.term"] for one in parts] == [2, 3]
    assert len({one.parent.span_id for one in parts}) == 1


def test_a_step_that_is_not_traced_is_named_by_its_groups_all_the_same(finished_spans):
    assert trained(StepTraces("run", 2, StepSampler(0.0)), groups(1)) == ""
    assert [one.name for one in finished_spans()] == ["wait_in_log", "train"]
    assert [one.attributes["gradbus.step"] for one in finished_spans()] == [0, 0]
    assert [len(one.links) for one in finished_spans()] == [0, 0]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_step_that_fails_is_recorded_whether_it_is_traced_or_not(finished_spans, share):
    def fails():
        with StepTraces("run", 2, StepSampler(share)).step(4) as trace, trace.training(groups(1)):
            raise ZeroDivisionError("a fault")

    with pytest.raises(ZeroDivisionError):
        fails()
    (failed,) = [one for one in finished_spans() if one.name == "train_step"]
    assert (failed.status.description, failed.attributes["gradbus.step"]) == ("ZeroDivisionError: a fault", 4)
    assert not [one for one in finished_spans() if one.name == "train"]


def test_steps_are_traced_by_their_share(finished_spans):
    for step in range(50):
        trained(StepTraces("run", 1, StepSampler(0.2)), [], step)
    wanted = {trace for step in range(50) if is_sampled(trace := step_trace("run", step, 1), 0.2)}
    assert {one.context.trace_id for one in finished_spans()} == {trace_id(trace) for trace in wanted}


def test_of_short_steps_one_is_traced_and_each_that_trains_a_traced_group(finished_spans):
    traces = StepTraces("run", 1, StepSampler(seconds=3600.0))
    for step in range(20):
        trained(traces, groups(step) if step % 7 == 6 else [collected(step)], step)
    assert [one.attributes["gradbus.step"] for one in finished_spans() if one.name == "train_step"] == [0, 6, 13]
    assert [len(one.links) for one in finished_spans() if one.name == "train"] == [1, 1]


def test_a_step_is_traced_once_its_time_has_come(finished_spans):
    times = iter((5.0, 5.19, 5.2))
    traces = StepTraces("run", 1, StepSampler(seconds=0.2, clock=lambda: next(times)))
    for step in range(3):
        trained(traces, [], step)
    assert [one.attributes["gradbus.step"] for one in finished_spans() if one.name == "train_step"] == [0, 2]


def test_a_step_that_fails_before_its_groups_are_there_has_its_name_all_the_same(finished_spans):
    def fails():
        with StepTraces("run", 2, StepSampler()).step(4):
            raise ZeroDivisionError("a fault")

    with pytest.raises(ZeroDivisionError):
        fails()
    (failed,) = finished_spans()
    assert failed.context.trace_id == trace_id(step_trace("run", 4, 2))
    assert failed.status.description == "ZeroDivisionError: a fault"


def test_of_very_many_micro_batches_the_first_are_recorded_and_the_optimiser_always():
    phases = PhaseClock()
    for _ in range(100):
        with phases("forward"), phases("backward"):
            pass
    with phases("optimise"):
        pass
    assert len(phases.recorded) == 65
    assert phases.recorded[-1].name == "optimise"
