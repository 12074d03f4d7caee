"""The server and the channel over a real connection."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradbus.access.table import METHODS
from gradbus.errors import SettingsError
from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.rpc.options import MAX_MESSAGE_BYTES
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server

TOKEN = "of-the-test"
ROLES = ("gateway", "conductor", "rollout", "trainer")
TOKENS = {role: f"{role}-{TOKEN}" for role in ROLES} | {"conductor": TOKEN}
CALLERS = {role: token_hash(token) for role, token in TOKENS.items()}
UNAUTHENTICATED, FORBIDDEN, UNAVAILABLE, DEADLINE = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


@dataclass
class Service(RewardServiceServicer):
    behave: Callable | None = None
    calls: int = 0

    async def Score(self, request, context):  # noqa: N802
        self.calls += 1
        if self.behave:
            await self.behave(self, context)
        return ScoreResponse()


@pytest.fixture
def service():
    return Service()


@pytest.fixture
async def server(service):
    server = RpcServer(RpcSettings("127.0.0.1:0", CALLERS))
    add_RewardServiceServicer_to_server(service, server.server)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def own_server():
    """Its address; it has no services, so a call that is let through finds none."""
    server = RpcServer(RpcSettings("127.0.0.1:0", CALLERS))
    await server.start()
    yield f"127.0.0.1:{server.port}"
    await server.stop()


@pytest.fixture
async def channel(server):
    opened = []

    def open_with(token):
        opened.append(open_channel(f"127.0.0.1:{server.port}", token))
        return opened[-1]

    yield open_with
    for each in opened:
        await each.close()


async def code_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_with_the_token_a_call_is_answered(channel, service):
    assert await RewardServiceStub(channel(TOKEN)).Score(ScoreRequest(), timeout=60) == ScoreResponse()
    assert service.calls == 1


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], CALLERS["conductor"], "conductor"])
async def test_without_it_the_service_is_never_reached(channel, service, token):
    assert await code_of(RewardServiceStub(channel(token)).Score(ScoreRequest(), timeout=60)) == UNAUTHENTICATED
    assert service.calls == 0


@pytest.mark.parametrize("role", ["rollout", "trainer", "gateway"])
async def test_a_role_without_the_right_is_refused_before_the_service_is_reached(channel, service, role):
    assert await code_of(RewardServiceStub(channel(TOKENS[role])).Score(ScoreRequest(), timeout=60)) == FORBIDDEN
    assert service.calls == 0


@pytest.mark.parametrize("method", [method for methods in METHODS.values() for method in methods])
async def test_each_method_answers_the_roles_that_the_table_names(own_server, method):
    called = set()
    for role in ROLES:
        async with open_channel(own_server, TOKENS[role]) as channel:
            call = channel.unary_unary(f"/{method}", request_serializer=ScoreRequest.SerializeToString)
            if await code_of(call(ScoreRequest(), timeout=60)) == grpc.StatusCode.UNIMPLEMENTED:
                called.add(role)
    assert called == set(next(methods[method] for methods in METHODS.values() if method in methods))


async def test_the_request_of_an_unknown_caller_is_not_read(own_server):
    async with open_channel(own_server, "wrong") as channel:
        call = channel.stream_unary("/gradbus.v1.RewardService/Score", request_serializer=ScoreRequest.SerializeToString)()
        # It never ends its request, and is refused all the same.
        assert await asyncio.wait_for(call.code(), 60) == UNAUTHENTICATED


async def test_a_request_beyond_the_bound_is_refused(server, service):
    large = ScoreRequest(reward_json="x" * MAX_MESSAGE_BYTES)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as unbounded:
        call = RewardServiceStub(unbounded).Score(large, timeout=60, metadata=(("authorization", f"Bearer {TOKEN}"),))
        assert await code_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert service.calls == 0


async def test_a_compressed_request_is_never_inflated(server, service):
    request = ScoreRequest(reward_json="x" * 1000)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", compression=grpc.Compression.Gzip) as inflating:
        call = RewardServiceStub(inflating).Score(request, timeout=60, metadata=(("authorization", f"Bearer {TOKEN}"),))
        assert await code_of(call) == grpc.StatusCode.UNIMPLEMENTED
    assert service.calls == 0


async def test_health_is_open_to_everybody(channel):
    answer = await health_pb2_grpc.HealthStub(channel("")).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_unknown_method_without_a_token_is_not_told_apart(channel):
    unknown = channel("").unary_unary("/gradbus.v1.RewardService/Delete", request_serializer=ScoreRequest.SerializeToString)
    assert await code_of(unknown(ScoreRequest(), timeout=60)) == UNAUTHENTICATED


async def test_a_call_ends_at_its_deadline(channel, service):
    async def hang(_service, _context):
        await asyncio.sleep(60)

    service.behave = hang
    assert await code_of(RewardServiceStub(channel(TOKEN)).Score(ScoreRequest(), timeout=0.2)) == DEADLINE


async def test_a_call_to_a_service_that_is_away_for_a_moment_is_repeated(channel, service):
    async def be_away_twice(_service, context):
        if service.calls < 3:
            await context.abort(UNAVAILABLE, "starting")

    service.behave = be_away_twice
    await RewardServiceStub(channel(TOKEN)).Score(ScoreRequest(), timeout=60)
    assert service.calls == 3


async def test_stopping_finishes_the_calls_in_flight(service):
    server = RpcServer(RpcSettings("127.0.0.1:0", CALLERS))
    add_RewardServiceServicer_to_server(service, server.server)
    await server.start()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_service, _context):
        reached.set()
        await go_on.wait()

    service.behave = wait
    async with open_channel(f"127.0.0.1:{server.port}", TOKEN) as channel:
        call = asyncio.ensure_future(RewardServiceStub(channel).Score(ScoreRequest(), timeout=60))
        await reached.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.05)
        go_on.set()
        assert await call == ScoreResponse()
        await stopping


def test_a_server_without_callers_does_not_start():
    with pytest.raises(SettingsError, match="GRADBUS_RPC_CALLERS"):
        RpcServer(RpcSettings("127.0.0.1:0", {}))


async def test_a_taken_address_is_named(server):
    with pytest.raises(SettingsError, match=str(server.port)):
        await RpcServer(RpcSettings(f"127.0.0.1:{server.port}", CALLERS)).start()
