"""A user's scorer over gRPC that sends other bytes than it should, and a name that leads to ever other addresses."""

import ipaddress
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from scorer_lab import ERROR, scored

from gradbus.v1 import reward_pb2
from gradbus_reward.scorers import grpc as grpc_scorer
from gradbus_reward.scorers.addresses import AddressPolicy, Endpoint

EMPTY_RESULT = reward_pb2.ScoreResponse(results=[reward_pb2.SampleReward()]).SerializeToString()


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


async def test_a_name_that_leads_to_ever_other_addresses_holds_few_channels():
    scorer = grpc_scorer.GrpcScorer("grpc://scorer:9000", AddressPolicy())
    channels = [await scorer._channel(Endpoint("scorer", 9000, (ipaddress.ip_address(f"127.0.0.{n}"),))) for n in range(1, 30)]
    assert len(scorer._channels) == grpc_scorer._CHANNELS
    assert channels[-1] is await scorer._channel(Endpoint("scorer", 9000, (ipaddress.ip_address("127.0.0.29"),)))
    await scorer.close()
