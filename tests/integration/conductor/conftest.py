"""The conductor's clients, with a reward and a reference service in this process that answer as the test says."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import pytest

from gradbus.buffer import BufferSettings, open_buffer
from gradbus.bus import Bus, BusSettings
from gradbus.control.runs import RunRecord
from gradbus.objects import ObjectStore
from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.spec import parse_spec
from gradbus.v1.group_pb2 import Group
from gradbus.v1.reference_service_pb2 import LogProbsResponse, SequenceLogProbs
from gradbus.v1.reference_service_pb2_grpc import (
    ReferenceServiceServicer,
    ReferenceServiceStub,
    add_ReferenceServiceServicer_to_server,
)
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_conductor.clients import Addresses, Clients

TOKEN = "of-the-test"


@dataclass
class Scorer(RewardServiceServicer):
    """Calls `answer(sample, attempt)` for each sample; None leaves the sample out. Results come in reverse order."""

    answer: Callable = lambda sample, _: ok(sample, float(sample.sample_id.endswith(".0")))
    down: int = 0
    most: int = 1 << 20
    """Samples in a call; one that brings more is refused."""
    refused: int = 0
    asked: dict[str, int] = field(default_factory=dict)

    async def Score(self, request, context):  # noqa: N802
        if self.down:
            self.down -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the scorer's machine is on fire")
        if len(request.samples) > self.most:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the scorer takes no message of that size")
        results = []
        for sample in request.samples:
            self.asked[sample.sample_id] = self.asked.get(sample.sample_id, 0) + 1
            results.append(self.answer(sample, self.asked[sample.sample_id]))
        return ScoreResponse(results=[result for result in reversed(results) if result is not None])


@dataclass
class Reference(ReferenceServiceServicer):
    """Log-probabilities of one sample at a time are cut short `short` times."""

    short: int = 0
    asked: list[str] = field(default_factory=list)

    async def LogProbs(self, request, context):  # noqa: N802
        results = [SequenceLogProbs(sample_id=item.sample_id, logprobs=bytes(len(item.token_ids))) for item in request.sequences]
        self.asked += [item.sample_id for item in request.sequences]
        if self.short:
            self.short -= 1
            results[0].logprobs = results[0].logprobs[:-4]
        return LogProbsResponse(results=results[::-1])


def ok(sample, reward):
    return SampleReward(sample_id=sample.sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=reward)


@pytest.fixture
def scorer():
    return Scorer()


@pytest.fixture
def reference():
    return Reference()


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(6)}"


@pytest.fixture
async def bus(nats_url):
    bus = await Bus.connect(BusSettings(nats_url), "test")
    yield bus
    await bus.close()


@pytest.fixture
async def clients(bus, buffer_url, object_url, scorer, reference):
    server = RpcServer(RpcSettings("127.0.0.1:0", {"conductor": token_hash(TOKEN)}))
    add_RewardServiceServicer_to_server(scorer, server.server)
    add_ReferenceServiceServicer_to_server(reference, server.server)
    await server.start()
    channel = open_channel(f"127.0.0.1:{server.port}", TOKEN)
    buffer = open_buffer(BufferSettings(buffer_url))
    stubs = WeightStoreServiceStub(channel), RewardServiceStub(channel), ReferenceServiceStub(channel)
    yield Clients(bus, buffer, ObjectStore.open(object_url), *stubs, (channel,), Addresses(*["the-address:1"] * 3))
    await channel.close()
    await buffer.aclose()
    await server.stop()


@pytest.fixture
def record(run_id):
    def make(**sections):
        body = {
            "name": "p",
            "model": {"path": "m"},
            "data": {"train": "t"},
            "reward": {"service": "grpc://127.0.0.1:1"},
            "rollout": {"group_size": 2},
            "schedule": {"steps": 4, "groups_per_step": 2},
        }
        return RunRecord(run_id=run_id, spec=parse_spec(body | sections), created_unix_ns=1)

    return make


@pytest.fixture
def group(run_id):
    def make(index, tokens=3, finish=FinishReason.FINISH_REASON_STOP, versions=(4, 5)):
        spans = [Span(start=at, end=at + 1, version=version, trainable=True) for at, version in enumerate(versions)]
        samples = [
            Sample(sample_id=f"{index}.{n}", n=n, token_ids=bytes(4 * tokens), spans=spans, finish_reason=finish, text=f"answer {n}")
            for n in range(2)
        ]
        return Group(run_id=run_id, index=index, row=index, version=versions[0], prompt_text="2+2=", samples=samples)

    return make
