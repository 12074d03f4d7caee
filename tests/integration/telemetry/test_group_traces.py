"""A group's trace in the uncommon cases: not sampled, failing, dispatched again, dropped, abandoned."""

import pytest
from opentelemetry.trace import SpanKind

from gradbus.bus import Delivery
from gradbus.telemetry import group_trace, is_sampled
from gradbus.v1.episode_pb2 import Episode, Message, Turn
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import ScoreSample
from gradbus.v1.sample_pb2 import Sample
from gradbus.v1.task_pb2 import GroupTask, Task
from gradbus_conductor.groups.traces import GroupTraces
from gradbus_reward.scorers.telemetry import grade_spans
from gradbus_rollout.engines.base import Completion, GroupCompletion, TokenSpan
from gradbus_rollout.tasks.generation_traces import TurnTimes
from gradbus_rollout.tasks.generation_traces import recorded as generation_recorded

RUN = {"gradbus.run.id": "run"}


def dispatched(traces, *indexes):
    task = Task(task_id="1.0.0", groups=[GroupTask(index=index, traceparent=traces.begin(index, 10)) for index in indexes])
    traces.dispatched([task], 10)
    return task


def entry(traces, index, verdict=Verdict.VERDICT_TRAIN, reason=""):
    made = LogEntry(index=index, verdict=verdict, reason=reason)
    traces.stamp({index: made})
    return made


def orphans(spans):
    ids = {span.context.span_id for span in spans}
    return [span.name for span in spans if span.parent and span.parent.span_id not in ids]


def test_a_group_that_is_not_traced_leaves_nothing(finished_spans):
    traces = GroupTraces("run", 0.0)
    task = dispatched(traces, 1)
    assert task.groups[0].traceparent == ""
    with traces.call("score", [1]) as call:
        assert call.spans == {}
        call.answered(1, [])
    with generation_recorded(Delivery(task, 5), RUN) as times:
        times.mark_sampled([GroupCompletion("1", ())])
    with grade_spans(["part"], [ScoreSample(group_id="1")]):
        pass
    made = entry(traces, 1)
    assert made.traceparent == ""
    traces.admitted([made], 10)
    assert finished_spans() == []


def test_the_share_decides_and_always_alike(finished_spans):
    one, other = GroupTraces("run", 0.3), GroupTraces("run", 0.3)
    chosen = [index for index in range(200) if one.begin(index, 1)]
    assert chosen == [index for index in range(200) if other.begin(index, 1)]
    assert chosen == [index for index in range(200) if is_sampled(group_trace("run", index), 0.3)]
    assert 30 < len(chosen) < 90


def test_a_group_that_is_not_traced_is_from_its_first_failure_on(finished_spans):
    traces = GroupTraces("run", 0.0)
    dispatched(traces, 1, 2)
    with traces.call("score", [1, 2]) as call:
        call.failed([1], "the scorer is away")
        call.failed([1], "a later reason")
    (failed,) = finished_spans()
    assert (failed.name, failed.status.description) == ("score", "the scorer is away")
    with traces.call("score", [1, 2]) as call:
        call.answered(1, [])
    made = entry(traces, 1)
    traces.admitted([made], 20)
    assert made.traceparent == group_trace("run", 1)
    assert sorted(span.name for span in finished_spans()) == ["admit", "group", "score", "score", "score_call"]
    assert orphans(finished_spans()) == []


def test_a_call_that_breaks_is_recorded_for_all_its_groups(finished_spans):
    traces = GroupTraces("run", 1.0)
    dispatched(traces, 1, 2)
    with pytest.raises(ZeroDivisionError), traces.call("reference", [1, 2]):
        raise ZeroDivisionError("a fault")
    failures = [span for span in finished_spans() if span.name == "reference"]
    assert [span.status.description for span in failures] == ["ZeroDivisionError: a fault"] * 2


def test_a_group_dispatched_again_has_one_root(finished_spans):
    traces = GroupTraces("run", 1.0)
    dispatched(traces, 1)
    dispatched(traces, 1)
    traces.admitted([entry(traces, 1)], 30)
    traces.admitted([], 30)
    names = sorted(span.name for span in finished_spans())
    assert names == ["admit", "group", "send prompts.*", "send prompts.*"]
    assert orphans(finished_spans()) == []
    (root,) = [span for span in finished_spans() if span.name == "group"]
    assert root.start_time == 10


def test_another_conductor_goes_on_in_the_same_trace(finished_spans):
    first, second = GroupTraces("run", 1.0), GroupTraces("run", 1.0)
    task = dispatched(first, 1)
    second.fetched([Group(index=1, traceparent=task.groups[0].traceparent), Group(index=2)])
    second.admitted([entry(second, 1), entry(second, 2)], 30)
    assert orphans(finished_spans()) == []
    assert len({span.context.trace_id for span in finished_spans()}) == 1


def test_a_group_that_another_conductor_appended_is_not_recorded_twice(finished_spans):
    traces = GroupTraces("run", 1.0)
    dispatched(traces, 1)
    traces.forget([1])
    traces.abandon("cancelled")
    assert [span.name for span in finished_spans()] == ["send prompts.*"]


def test_a_group_dropped_while_it_is_scored_leaves_no_orphan(finished_spans):
    traces = GroupTraces("run", 1.0)
    dispatched(traces, 1)
    with traces.call("score", [1]) as call, grade_spans(["part"], [ScoreSample(traceparent=call.spans[1])]):
        traces.admitted([entry(traces, 1, Verdict.VERDICT_DROPPED, "deadline")], 30)
    assert orphans(finished_spans()) == []
    (root,) = [span for span in finished_spans() if span.name == "group"]
    assert (root.attributes["gradbus.verdict"], root.attributes["gradbus.reason"]) == ("dropped", "deadline")


def test_a_run_that_is_cancelled_ends_the_traces_under_way(finished_spans):
    traces = GroupTraces("run", 1.0)
    dispatched(traces, 1, 2)
    traces.abandon("cancelled")
    assert orphans(finished_spans()) == []
    assert [span.attributes["gradbus.verdict"] for span in finished_spans() if span.name == "group"] == ["abandoned"] * 2


def test_a_part_of_the_grader_that_breaks_is_recorded(finished_spans):
    with pytest.raises(ZeroDivisionError), grade_spans(["part"], [ScoreSample(traceparent=group_trace("run", 1))]):
        raise ZeroDivisionError
    assert not finished_spans()[0].status.is_ok


def completion(times):
    return Completion((1, 2), b"", (TokenSpan(0, 1, 3), TokenSpan(1, 2, 4)), "stop", times)


def test_samples_say_which_versions_made_them(finished_spans):
    task = dispatched(GroupTraces("run", 1.0), 1)
    with generation_recorded(Delivery(task, 5), RUN) as times:
        times.mark_sampled([GroupCompletion("1", (completion((100, 200)), completion((150, 300))), (50, 100))])
    samples = [span for span in finished_spans() if span.name == "sample"]
    assert [(span.start_time, span.end_time, span.attributes["gradbus.queue.seconds"]) for span in samples] == [
        (100, 200, 5e-8),
        (150, 300, 1e-7),
    ]
    assert samples[0].attributes["gradbus.span.versions"] == [3, 4]
    assert samples[0].attributes["gradbus.span.starts"] == [0, 1]


def test_turns_of_episodes_say_how_long_their_environment_took(finished_spans):
    task = dispatched(GroupTraces("run", 1.0), 1, 2)
    with generation_recorded(Delivery(task, 5), RUN) as times:
        played = [GroupCompletion(key, (completion((100, 200)), completion((150, 300)))) for key in "12"]
        turns = [TurnTimes(100, 120, 150, 3, "stop"), TurnTimes(150, 190, 1_000_000_190, 6, "length")]
        times.mark_sampled(played, [[turns, []], [[], turns[:1]]])
    of_groups = {span.context.span_id: span.attributes["gradbus.group.index"] for span in finished_spans() if span.name == "generate"}
    found = [(of_groups[span.parent.span_id], span) for span in finished_spans() if span.name == "turn"]
    assert [(group, span.attributes["gradbus.sample.n"], span.attributes["gradbus.turn"]) for group, span in found] == [
        (1, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
    ]
    second = found[1][1]
    assert (second.start_time, second.end_time, second.attributes["gradbus.environment.seconds"]) == (150, 1_000_000_190, 1.0)
    assert second.attributes["gen_ai.usage.output_tokens"] == 6
    assert tuple(second.attributes["gen_ai.response.finish_reasons"]) == ("length",)
    assert second.attributes["gradbus.run.id"] == "run"


def test_spans_carry_texts_where_the_worker_gives_them(finished_spans):
    task = dispatched(GroupTraces("run", 1.0), 1, 2)
    with generation_recorded(Delivery(task, 5), RUN) as times:
        played = [GroupCompletion(key, (completion(None), completion((150, 300)))) for key in "12"]
        turns = [TurnTimes(100, 120, 150, 3, "stop"), TurnTimes(150, 190, 200, 6, "length")]
        times.mark_sampled(played, [[[], turns], [[], turns]])
        said = [Turn(text="look", messages=[Message(content="it is"), Message(content="dark")]), Turn(text="x" * 40_000)]
        samples = [Sample(), Sample(text="look and see", episode=Episode(turns=said))]
        times.groups = [Group(index=2, prompt_text="where?", samples=samples)]  # another worker took over the first one
    texts = [
        (span.name, span.attributes.get("input.value"), span.attributes.get("output.value"))
        for span in finished_spans()
        if span.name in {"sample", "turn"}
    ]
    assert texts == [
        ("sample", None, None),
        ("turn", None, None),
        ("turn", None, None),
        ("sample", "where?", "look and see"),
        ("turn", "where?", "look"),
        ("turn", "it is\ndark", "x" * 2048),
    ]


def test_an_engine_without_times_leaves_out_the_sample_spans(finished_spans):
    task = dispatched(GroupTraces("run", 1.0), 1)
    with generation_recorded(Delivery(task, 5), RUN) as times:
        times.mark_sampled([GroupCompletion("1", (completion(None),))])
    assert sorted(span.name for span in finished_spans()) == ["deliver", "generate", "queue", "send prompts.*", "set_aside"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_engine_that_breaks_is_recorded_whether_its_groups_are_traced_or_not(finished_spans, share):
    task = dispatched(GroupTraces("run", share), 1)
    with pytest.raises(ZeroDivisionError), generation_recorded(Delivery(task, 5), RUN):
        raise ZeroDivisionError("a fault")
    (failed,) = [span for span in finished_spans() if span.name == "generate"]
    assert (failed.kind, failed.status.description, failed.parent is None) == (SpanKind.CONSUMER, "ZeroDivisionError: a fault", not share)
