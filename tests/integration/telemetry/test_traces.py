"""One trace follows a group from prompt to gradient, over every wire."""

import asyncio

import grpc
import pytest
from opentelemetry.trace import SpanKind

from gradbus.algorithms import judge_group
from gradbus.buffer import ExperienceLog, GroupStore
from gradbus.bus import TaskQueue, subjects
from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.spec import AlgorithmSpec
from gradbus.telemetry import current_traceparent, linked_span, span
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server
from gradbus.v1.task_pb2 import GroupTask, Task
from gradbus_trainer.collector import Collected
from gradbus_trainer.rows import build_batch

METHOD = "gradbus.v1.RewardService/Score"


def is_child(child, parent):
    return child.parent.span_id == parent.context.span_id and child.context.trace_id == parent.context.trace_id


def task(run_id):
    return Task(task_id="1.0.0", run_id=run_id, version=0, groups=[GroupTask(index=3, row=3)])


async def test_a_group_is_followed_from_its_prompt_to_its_gradient(spans, bus, buffer, run_id):
    queue, store, log = TaskQueue(bus, run_id), GroupStore(buffer, run_id), ExperienceLog(buffer, run_id)
    await queue.open()
    await queue.publish([task(run_id)])
    (delivery,) = await queue.fetch(1)
    with span("rollout", SpanKind.CONSUMER, delivery.traceparent):
        await store.put([Group(index=3, traceparent=current_traceparent())])
    group = (await store.get([3]))[3]
    with linked_span("score", [group.traceparent]):
        assert judge_group([], [], AlgorithmSpec()).filtered
    await log.append(1, {3: LogEntry(index=3, verdict=Verdict.VERDICT_FILTERED, group=group.SerializeToString())})
    (stored,) = await log.read()
    _, facts = build_batch(0, [Collected(stored.decode(), stored.digest, 1)], AlgorithmSpec())
    with linked_span("train_step", facts.parents):
        pass
    found = spans()
    assert found["dispatch"].parent is None, "a trace begins with its dispatch"
    assert found["dispatch"].kind == SpanKind.PRODUCER
    assert found["dispatch"].attributes["gradbus.run.id"] == run_id
    assert is_child(found["rollout"], found["dispatch"])
    for name in ("score", "train_step"):
        assert [link.context.span_id for link in found[name].links] == [found["rollout"].context.span_id]
        assert found[name].parent is None


async def test_each_task_begins_a_trace_of_its_own(spans, memory, bus, run_id):
    await TaskQueue(bus, run_id).publish([task(run_id) for _ in range(3)])
    assert len({one.context.trace_id for one in memory[0].get_finished_spans() if one.name == "dispatch"}) == 3


async def test_a_core_message_is_handled_in_its_senders_trace(spans, bus, run_id):
    seen = asyncio.get_running_loop().create_future()

    async def note(_payload):
        seen.set_result(current_traceparent())

    async with bus.subscribed(subjects.versions(run_id), note):
        await bus.client.flush()
        with span("publish_version"):
            await bus.publish(subjects.versions(run_id), b"manifest")
        traceparent = await asyncio.wait_for(seen, 10)
        await bus.client.flush()
    found = spans()
    assert is_child(found["process versions.*"], found["publish_version"])
    assert traceparent.split("-")[2] == f"{found['process versions.*'].context.span_id:016x}"


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
    with span("score"):
        await scorer.Score(ScoreRequest(run_id="run"), timeout=10)
    found = calls(memory)
    assert is_child(found[SpanKind.CLIENT], spans()["score"])
    assert is_child(found[SpanKind.SERVER], found[SpanKind.CLIENT])


async def test_a_refused_call_keeps_its_status_and_marks_its_span(spans, memory, scorer):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scorer.Score(ScoreRequest(run_id="refused"), timeout=10)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not that one")
    assert not calls(memory)[SpanKind.CLIENT].status.is_ok


async def test_deadlines_and_cancellation_still_end_a_call(spans, scorer):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scorer.Score(ScoreRequest(run_id="slow"), timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = asyncio.create_task(asyncio.wait_for(scorer.Score(ScoreRequest(run_id="slow"), timeout=20), 20))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_links_are_one_for_each_trace_and_capped(spans):
    parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 301) for _ in range(2)]
    with linked_span("train_step", parents):
        pass
    links = spans()["train_step"].links
    assert [link.context.trace_id for link in links] == list(range(1, 129))


def test_what_is_no_traceparent_is_no_link_and_no_parent(spans):
    with span("outer"), linked_span("train_step", ["", "nonsense", "00-0-0-01"]), span("inner", parent="nonsense"):
        pass
    found = spans()
    assert list(found["train_step"].links) == []
    assert found["inner"].parent is None
