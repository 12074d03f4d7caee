"""The bounds of one connection, by its protocol's own methods."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from gradbus_gateway.http.connection_table import ConnectionTable
from gradbus_gateway.http.connections import BoundedConnection
from gradbus_gateway.settings import ConnectionLimits

HEAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is sent to the client."""

    def __init__(self):
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2)})
        self.sent = b""
        self.is_paused = False

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return False

    def close(self):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False


@pytest.fixture
async def connection():
    """A connection with a wire, whose application never reads a body."""
    forever = asyncio.Event()

    async def app(scope, receive, send):
        await forever.wait()

    config = uvicorn.Config(app, log_config=None, lifespan="off")
    config.load()
    connection = BoundedConnection(config=config, server_state=ServerState(), app_state={}, table=ConnectionTable(ConnectionLimits()))
    wire = Wire()
    connection.connection_made(wire)
    connection.data_received(HEAD)
    yield connection, wire
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def pieces(count, size):
    return b"%x\r\n%b\r\n" % (size, b"x" * size) * count


async def test_while_the_application_is_slow_neither_the_rate_nor_the_pieces_of_its_client_count(connection):
    """A dataset of 5 GB was refused at a moment when the gateway stored it more slowly than it came."""
    protocol, wire = connection
    protocol.data_received(pieces(1500, 100))
    assert wire.is_paused, "the application has more than it reads"
    protocol.check(asyncio.get_running_loop().time())
    protocol.data_received(pieces(1500, 100))
    assert wire.sent == b""


async def test_small_pieces_are_refused_whatever_came_before(connection):
    protocol, wire = connection
    protocol.data_received(pieces(1000, 1))
    assert wire.sent == b""
    protocol.data_received(pieces(1, 1))
    assert b"too small pieces" in wire.sent
