"""Mutual TLS between a server and its callers: every handshake that should fail does, and says why."""

from dataclasses import replace
from datetime import timedelta

import grpc
import pytest

from gradbus.rpc import RpcServer, RpcSettings, describe_rpc_error, open_channel, token_hash
from gradbus.tls import AUTHORITY, CERTIFICATE, KEY, Identity, read_identity
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server

TOKENS = {"conductor": "of-the-conductor", "weight_store": "of-the-weight-store"}
CALLERS = {role: token_hash(token) for role, token in TOKENS.items()}
EXPIRED = timedelta(minutes=-1)


class Service(RewardServiceServicer):
    calls = 0

    async def Score(self, request, context):  # noqa: N802
        self.calls += 1
        return ScoreResponse()


@pytest.fixture
def service():
    return Service()


@pytest.fixture
async def serve(service):
    servers = []

    async def start(identity):
        server = RpcServer(RpcSettings("127.0.0.1:0", CALLERS, identity))
        add_RewardServiceServicer_to_server(service, server.server)
        await server.start()
        servers.append(server)
        return f"127.0.0.1:{server.port}"

    yield start
    for server in servers:
        await server.stop()


@pytest.fixture
def of_server(issue):
    return read_identity(issue("reward", "127.0.0.1"))


@pytest.fixture
def of_conductor(issue):
    return read_identity(issue("conductor"))


def unchecked(folder):
    """As a process that started while its certificate was valid."""
    return Identity(folder / CERTIFICATE, folder / KEY, 0.0, folder / AUTHORITY)


async def score(address, identity, token=TOKENS["conductor"]):
    async with open_channel(address, token, identity) as channel:
        return await RewardServiceStub(channel).Score(ScoreRequest(), timeout=60)


async def refusal(address, identity, token=TOKENS["conductor"]):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await score(address, identity, token)
    return caught.value.code(), describe_rpc_error("the reward service", address, caught.value)


async def test_a_call_with_a_token_and_the_certificate_of_its_role_is_answered(serve, service, of_server, of_conductor):
    assert await score(await serve(of_server), of_conductor) == ScoreResponse()
    assert service.calls == 1


async def test_a_caller_without_tls_is_refused(serve, service, of_server):
    code, text = await refusal(await serve(of_server), None)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "closes the connection; check that it runs, and that both sides have certificates of one authority" in text
    assert service.calls == 0


async def test_a_caller_without_a_certificate_is_refused(serve, service, of_server):
    trusting = grpc.ssl_channel_credentials(of_server.authority.read_bytes())
    metadata = (("authorization", f"Bearer {TOKENS['conductor']}"),)
    async with grpc.aio.secure_channel(await serve(of_server), trusting) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RewardServiceStub(channel).Score(ScoreRequest(), timeout=60, metadata=metadata)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert service.calls == 0


async def test_a_caller_of_another_authority_is_refused(serve, service, issue, of_server):
    foreign = replace(read_identity(issue("conductor", of="another")), authority=of_server.authority)
    code, text = await refusal(await serve(of_server), foreign)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "closes the connection" in text
    assert service.calls == 0


async def test_a_caller_whose_certificate_has_expired_is_refused(serve, service, issue, of_server):
    _, text = await refusal(await serve(of_server), unchecked(issue("conductor", lasts=EXPIRED)))
    assert "closes the connection" in text
    assert service.calls == 0


async def test_a_server_of_another_authority_is_not_called(serve, service, issue, of_conductor):
    address = await serve(read_identity(issue("reward", "127.0.0.1", of="another")))
    _, text = await refusal(address, of_conductor)
    assert "shows a certificate that is not valid here (unable to get local issuer certificate)" in text
    assert service.calls == 0


async def test_a_server_whose_certificate_has_expired_is_not_called(serve, service, issue, of_conductor):
    address = await serve(unchecked(issue("reward", "127.0.0.1", lasts=EXPIRED)))
    _, text = await refusal(address, of_conductor)
    assert "shows a certificate that is not valid here (certificate has expired)" in text
    assert service.calls == 0


async def test_a_server_that_shows_another_name_is_not_called(serve, service, issue, of_conductor):
    _, text = await refusal(await serve(read_identity(issue("reference"))), of_conductor)
    assert "shows a certificate for another name" in text
    assert service.calls == 0


async def test_a_server_without_tls_is_not_called(serve, service, of_conductor):
    _, text = await refusal(await serve(None), of_conductor)
    assert "does not use TLS, but this process does; set GRADBUS_TLS_DIR for both or for neither" in text
    assert service.calls == 0


async def test_the_token_of_one_role_with_the_certificate_of_another_is_refused(serve, service, issue, of_server):
    code, _ = await refusal(await serve(of_server), read_identity(issue("rollout")))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert service.calls == 0


async def test_a_certificate_gives_no_right_that_the_token_lacks(serve, service, issue, of_server, of_conductor):
    address = await serve(of_server)
    code, _ = await refusal(address, of_conductor, token="wrong")
    assert code == grpc.StatusCode.UNAUTHENTICATED
    code, _ = await refusal(address, read_identity(issue("weight-store")), TOKENS["weight_store"])
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert service.calls == 0
