"""One trace follows a group from prompt to gradient, over every wire."""

import asyncio

import grpc
import pytest
from opentelemetry.trace import SpanKind

from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.telemetry import TimedSpan, group_trace, record, root_span, span, under
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server

METHOD = "gradbus.v1.RewardService/Score"


def is_child(child, parent):
    return child.parent.span_id == parent.context.span_id and child.context.trace_id == parent.context.trace_id


class Scorer(RewardServiceServicer):
    async def Score(self, request, context):  # noqa: N802 - named by gRPC
        if request.run_id == "refused":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not that one")
        if request.run_id == "slow":
            await asyncio.sleep(30)
        return ScoreResponse()


@pytest.fixture
async def scorer():
    server = RpcServer(RpcSettings("127.0.0.1:0", {"conductor": token_hash("token")}))
    add_RewardServiceServicer_to_server(Scorer(), server.server)
    await server.start()
    channel = open_channel(f"127.0.0.1:{server.port}", "token")
    yield RewardServiceStub(channel)
    await channel.close()
    await server.server.stop(0)


def calls(memory):
    return {one.kind: one for one in memory[0].get_finished_spans() if one.name == METHOD}


async def test_a_call_is_a_client_span_with_the_servers_below_it(spans, memory, scorer):
    with root_span("score", []):
        await scorer.Score(ScoreRequest(run_id="run"), timeout=60)
    found = calls(memory)
    assert is_child(found[SpanKind.CLIENT], spans()["score"])
    assert is_child(found[SpanKind.SERVER], found[SpanKind.CLIENT])


async def test_a_refused_call_keeps_its_status_and_marks_its_span(spans, memory, scorer):
    with root_span("score", []), pytest.raises(grpc.aio.AioRpcError) as caught:
        await scorer.Score(ScoreRequest(run_id="refused"), timeout=60)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not that one")
    assert not calls(memory)[SpanKind.CLIENT].status.is_ok


async def test_deadlines_and_cancellation_still_end_a_call(spans, scorer):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scorer.Score(ScoreRequest(run_id="slow"), timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = asyncio.create_task(asyncio.wait_for(scorer.Score(ScoreRequest(run_id="slow"), timeout=60), 60))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_outside_of_a_trace_a_call_leaves_nothing_but_its_failure(finished_spans, scorer):
    await scorer.Score(ScoreRequest(run_id="run"), timeout=60)
    assert finished_spans() == []
    with pytest.raises(grpc.aio.AioRpcError):
        await scorer.Score(ScoreRequest(run_id="refused"), timeout=60)
    # Each side tells of it, in a trace of its own.
    assert {(one.name, one.kind, one.parent, one.status.is_ok) for one in finished_spans()} >= {(METHOD, SpanKind.CLIENT, None, False)}


def test_links_are_one_for_each_span_and_capped(spans):
    parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 301) for _ in range(2)]
    with root_span("score_call", parents):
        pass
    links = spans()["score_call"].links
    assert [link.context.trace_id for link in links] == list(range(1, 129))


def test_what_is_no_traceparent_is_no_link_and_no_parent(spans):
    with root_span("score_call", ["", "nonsense", "00-0-0-01"]), span("inner", parent="nonsense"):
        pass
    found = spans()
    assert list(found["score_call"].links) == []
    assert "inner" not in found


def test_a_span_outside_of_a_trace_is_recorded_only_if_it_fails(finished_spans):
    with span("work"):
        pass
    assert finished_spans() == []
    with pytest.raises(ValueError, match="no"), span("work", attributes={"gradbus.step": 3}):
        raise ValueError("no")
    (failure,) = finished_spans()
    assert (failure.parent, failure.status.description, failure.attributes["gradbus.step"]) == (None, "ValueError: no", 3)


def test_work_under_a_context_is_below_a_span_that_is_made_later(spans):
    root = group_trace("run", 1)
    with under(root), span("inner"):
        pass
    record(TimedSpan("group", 5, 9, own=root))
    found = spans()
    assert is_child(found["inner"], found["group"])
    assert (found["group"].start_time, found["group"].end_time, found["group"].parent) == (5, 9, None)
