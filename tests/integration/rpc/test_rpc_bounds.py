"""What a caller without a token may take from a gRPC server: little, and not for long."""

import asyncio
import socket

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.rpc.options import SERVER

BOUNDS = {"grpc.server_handshake_timeout_ms": 3000, "grpc.max_allowed_incoming_connections": 5}


@pytest.fixture
async def address(monkeypatch):
    """A server with the bounds of every server, but smaller ones."""
    assert BOUNDS.keys() <= dict(SERVER).keys()
    monkeypatch.setattr("gradbus.rpc.server.SERVER", [(name, BOUNDS.get(name, value)) for name, value in SERVER])
    server = RpcServer(RpcSettings("127.0.0.1:0", {"conductor": token_hash("token")}))
    await server.start()
    yield "127.0.0.1", server.port
    await server.stop()


def rest_of(client):
    with client:
        while client.recv(1 << 16):
            pass
        return True


async def test_a_connection_that_says_nothing_is_closed(address):
    client = socket.create_connection(address, timeout=60)
    assert await asyncio.to_thread(rest_of, client)


async def test_connections_beyond_the_limit_are_closed_and_the_others_work(address):
    async with open_channel("{}:{}".format(*address)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), timeout=60)
        clients = [socket.create_connection(address, timeout=60) for _ in range(20)]
        assert await asyncio.to_thread(lambda: [rest_of(client) for client in clients]) == [True] * 20
        await health.Check(health_pb2.HealthCheckRequest(), timeout=60)
