"""Scorers of a user's, over HTTP and gRPC, and what holds for every answer."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio

from gradbus.user_services.addresses import AddressPolicy
from gradbus.v1 import reward_pb2, reward_service_pb2_grpc
from gradbus_reward.graders.base import Capacity
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR
SETTINGS = ScorerSettings(addresses=AddressPolicy(allow_loopback=True), python_graders=True, pool=PoolSettings(processes=1))
STATUSES = {"ok": OK, "invalid": INVALID, "error": ERROR, "odd": 7}
IDS = ["0.0", "0.1", "1.0"]
REQUEST = reward_pb2.ScoreRequest(
    run_id="run-1",
    samples=[
        reward_pb2.ScoreSample(
            sample_id=name,
            group_id=name[0],
            prompt="7+5=",
            response="12",
            item_json='{"answer": 12}',
            finish_reason="stop",
            weight_version=4,
        )
        for name in IDS
    ],
)


def result(sample_id, reward=1.0, status="ok", **more):
    return {"sample_id": sample_id, "status": status, "reward": reward, "components": {}, "reason": ""} | more


@asynccontextmanager
async def http_service(answer: Callable[[dict], list[dict]], port=0) -> AsyncIterator[str]:
    """A user's scorer over HTTP."""

    async def respond(_head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        await write_json(writer, {"results": answer(json.loads(body))})

    async with raw_http_service(respond, port=port) as url:
        yield url


@asynccontextmanager
async def raw_http_service(respond, host="127.0.0.1", port=0) -> AsyncIterator[str]:
    """A server that reads one request a connection and lets `respond` write whatever it likes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await respond(head, await reader.readexactly(length), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client had enough, or only looked whether somebody listens
        finally:
            writer.close()

    server = await asyncio.start_server(handle, host, port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/score"
    finally:
        server.close()


async def write_json(writer, document, status="200 OK"):
    body = json.dumps(document).encode()
    writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    await writer.drain()


class Servicer(reward_service_pb2_grpc.RewardServiceServicer):
    def __init__(self, answer):
        self._answer = answer

    async def Score(self, request, context):  # noqa: N802 - gRPC's name
        asked = {"run_id": request.run_id, "samples": [{"sample_id": sample.sample_id} for sample in request.samples]}
        given = self._answer(asked)
        results = [reward_pb2.SampleReward(**entry | {"status": STATUSES[entry["status"]]}) for entry in given]
        return reward_pb2.ScoreResponse(results=results)


@asynccontextmanager
async def grpc_service(answer: Callable[[dict], list[dict]], port=0) -> AsyncIterator[str]:
    """A user's scorer over gRPC."""
    server = grpc.aio.server()
    reward_service_pb2_grpc.add_RewardServiceServicer_to_server(Servicer(answer), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


SERVICES = {"http": http_service, "grpc": grpc_service}


async def scored(reward, seconds=60.0):
    """The answers of the scorer for a `[reward]` section, with what holds for all of them checked."""
    scorer = create_scorer(json.dumps(reward), SETTINGS, Capacity())
    try:
        async with asyncio.timeout(120):
            answers = await scorer.score(REQUEST, seconds)
    finally:
        await scorer.close()
    assert [answer.sample_id for answer in answers] == IDS
    for answer in answers:
        assert answer.status in {OK, INVALID, ERROR}
        assert math.isfinite(answer.reward)
        assert answer.status == OK or answer.reason
    return answers


def echo(change=lambda results: results):
    """A scorer that answers i for the i-th sample, changed by `change`."""
    return lambda asked: change([result(sample["sample_id"], float(n)) for n, sample in enumerate(asked["samples"])])
