"""A user's scorer over gRPC that sends other bytes than it should, and a name that leads to ever other addresses."""

import asyncio
import ipaddress
from contextlib import asynccontextmanager, suppress

import grpc.aio
import pytest
from scorer_lab import ERROR, scored

from gradbus.user_services.addresses import AddressPolicy, Endpoint
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers import grpc as grpc_scorer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
"""Types of frames of HTTP/2 (RFC 9113)."""
EMPTY_RESULT = reward_pb2.ScoreResponse(results=[reward_pb2.SampleReward()]).SerializeToString()


def frame(kind, payload=b"", flags=0, stream=0):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Raw(grpc.GenericRpcHandler):
    def __init__(self, body):
        self._body = body

    def service(self, _details):
        async def respond(_request, _context):
            return self._body

        return grpc.unary_unary_rpc_method_handler(respond)


@asynccontextmanager
async def raw_grpc_service(body):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Raw(body),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff" * 9, "not a gradbus.v1.ScoreResponse"),
        (b"\x0a\x04\x0a\x02\xff\xff", "not a gradbus.v1.ScoreResponse"),
        (EMPTY_RESULT * 500_000, "returned 500000 results for 3 samples"),
        (EMPTY_RESULT * 1_000_000, "has 2000000 bytes"),
    ],
    ids=["no message", "no utf-8", "too many results", "too long"],
)
async def test_other_bytes_are_an_error_that_names_them(body, words):
    async with raw_grpc_service(body) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert words in answers[0].reason


@asynccontextmanager
async def raw_http2_service(answer):
    """A server that lets `answer(writer)` write frames to every connection."""

    async def handle(reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(len(PREFACE))
            writer.write(frame(SETTINGS))
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(("kind", "payload"), [(SETTINGS, b""), (PING, bytes(8)), (WINDOW_UPDATE, b"\0\0\0\1"), (77, b"nothing")])
async def test_a_scorer_that_floods_its_connection_is_cut_off(kind, payload):
    """gRPC would read on in threads of its own, and take hundreds of megabytes, until the deadline."""

    async def flood(_reader, writer):
        while True:
            writer.write(frame(kind, payload) * 1000)
            await writer.drain()

    async with raw_http2_service(flood) as url:
        answers = await scored({"service": url}, seconds=3600.0)
    assert {answer.status for answer in answers} == {ERROR}
    assert "sent far more than its response" in answers[0].reason


@pytest.mark.parametrize(
    ("status", "words"), [(b"99", "unknown gRPC status 99"), (b"0", "responded without a message")], ids=["unknown", "no message"]
)
async def test_a_status_that_no_scorer_sends_is_an_error_that_names_it(status, words):
    async def respond(reader, writer):
        while (head := await reader.readexactly(9))[3] != DATA:
            await reader.readexactly(int.from_bytes(head[:3], "big"))
        fields = {b"content-type": b"application/grpc", b"grpc-status": status}
        block = b"\x88" + b"".join(b"\0%c%s%c%s" % (len(name), name, len(value), value) for name, value in fields.items())
        writer.write(frame(HEADERS, block, flags=5, stream=1))
        await reader.read()

    async with raw_http2_service(respond) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert words in answers[0].reason


async def test_a_name_that_leads_to_ever_other_addresses_holds_few_channels():
    scorer = grpc_scorer.GrpcScorer("grpc://scorer:9000", AddressPolicy())
    channels = [await scorer._channel(Endpoint("scorer", 9000, (ipaddress.ip_address(f"127.0.0.{n}"),))) for n in range(1, 30)]
    assert len(scorer._channels) == grpc_scorer._CHANNELS
    assert channels[-1] is await scorer._channel(Endpoint("scorer", 9000, (ipaddress.ip_address("127.0.0.29"),)))
    await scorer.close()
