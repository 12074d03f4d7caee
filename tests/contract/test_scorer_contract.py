"""The same promises of every kind of scorer, kept against scorers that lie, hang and die (R6)."""

import asyncio
import ipaddress
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from gradbus.v1 import reward_pb2, reward_service_pb2_grpc
from gradbus_reward.addresses import AddressPolicy, Endpoint
from gradbus_reward.answers import answer_bytes
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorer import ScorerSettings, scorer_for

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
async def http_service(answer: Callable[[dict], list[dict]]) -> AsyncIterator[str]:
    """A user's scorer over HTTP."""

    async def respond(_head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        await write_json(writer, {"results": answer(json.loads(body))})

    async with raw_http_service(respond) as url:
        yield url


@asynccontextmanager
async def raw_http_service(respond, host="127.0.0.1") -> AsyncIterator[str]:
    """A server that reads one request a connection and lets `respond` write whatever it likes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await respond(head, await reader.readexactly(length), writer)
        except ConnectionError:
            pass  # the client had enough
        finally:
            writer.close()

    server = await asyncio.start_server(handle, host, 0)
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
async def grpc_service(answer: Callable[[dict], list[dict]]) -> AsyncIterator[str]:
    """A user's scorer over gRPC."""
    server = grpc.aio.server()
    reward_service_pb2_grpc.add_RewardServiceServicer_to_server(Servicer(answer), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


SERVICES = {"http": http_service, "grpc": grpc_service}


async def scored(reward, seconds=60.0):
    """The answers of the scorer for a `[reward]` section, with what holds for all of them checked."""
    scorer = scorer_for(json.dumps(reward), SETTINGS)
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


@pytest.fixture(params=["http", "grpc"])
def service(request):
    return SERVICES[request.param]


def echo(change=lambda results: results):
    """A scorer that answers i for the i-th sample, changed by `change`."""
    return lambda asked: change([result(sample["sample_id"], float(n)) for n, sample in enumerate(asked["samples"])])


GOOD_GRADERS = {
    "string_check": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"},
    "python": {"type": "python", "source": "def grade(sample, item):\n    return sample['output_text'] == str(item['answer'])"},
}


@pytest.mark.parametrize("kind", GOOD_GRADERS)
async def test_a_grader_answers_every_sample(kind):
    assert [(answer.status, answer.reward) for answer in await scored({"grader": GOOD_GRADERS[kind]})] == [(OK, 1.0)] * 3


async def test_answers_in_any_order_reach_their_samples(service):
    async with service(echo(lambda results: results[::-1])) as url:
        assert [(answer.status, answer.reward) for answer in await scored({"service": url})] == [(OK, 0.0), (OK, 1.0), (OK, 2.0)]


async def test_components_and_reasons_arrive(service):
    given = [
        result("0.0", 0.5, components={"digits": 0.25}),
        result("0.1", status="invalid", reason="empty"),
        result("1.0", status="error", reason="busy"),
    ]
    async with service(lambda _asked: given) as url:
        first, second, third = await scored({"service": url})
    assert (first.reward, dict(first.components)) == (0.5, {"digits": 0.25})
    assert [(second.status, second.reason), (third.status, third.reason)] == [(INVALID, "empty"), (ERROR, "busy")]


SPOILT = {
    "nan": lambda results: [results[0], results[1] | {"reward": math.nan}, results[2]],
    "infinite": lambda results: [results[0], results[1] | {"reward": -math.inf}, results[2]],
    "nan component": lambda results: [results[0], results[1] | {"components": {"x": math.nan}}, results[2]],
    "unknown status": lambda results: [results[0], results[1] | {"status": "odd"}, results[2]],
    "missing": lambda results: [results[0], results[2]],
    "foreign instead": lambda results: [results[0], results[1] | {"sample_id": "9.9"}, results[2]],
    "twice": lambda results: [*results, results[1]],
    "twice, differing": lambda results: [*results, results[1] | {"reward": 9.0}],
}


@pytest.mark.parametrize("spoil", SPOILT)
async def test_a_spoilt_result_is_an_error_for_its_sample_alone(service, spoil):
    async with service(echo(SPOILT[spoil])) as url:
        first, second, third = await scored({"service": url})
    assert [(first.status, first.reward), (third.status, third.reward)] == [(OK, 0.0), (OK, 2.0)]
    assert second.status == ERROR


async def test_text_that_no_wire_can_carry_is_replaced():
    async with http_service(
        lambda _asked: [result("0.0", components={"\ud800": 1.0}), result("0.1", status="error", reason="\udfff!"), result("\ud800")]
    ) as url:
        first, second, third = await scored({"service": url})
    assert (dict(first.components), second.reason, third.status) == ({"?": 1.0}, "?!", ERROR)


async def test_foreign_results_beside_good_ones_change_nothing(service):
    async with service(echo(lambda results: [result(f"9.{n}", 5.0) for n in range(9)] + results)) as url:
        assert [answer.reward for answer in await scored({"service": url})] == [0.0, 1.0, 2.0]


async def test_no_results_are_an_error_for_all(service):
    async with service(lambda _asked: []) as url:
        assert {answer.status for answer in await scored({"service": url})} == {ERROR}


def fails(_asked):
    raise RuntimeError("the scorer's own fault")


@pytest.mark.parametrize("kind", ["grpc", "python"])
async def test_a_scorer_that_raises_gives_no_reward(kind):
    if kind == "python":
        answers = await scored({"grader": {"type": "python", "source": "def grade(sample, item):\n    raise RuntimeError('own fault')"}})
        assert {answer.status for answer in answers} == {INVALID}
        return
    async with grpc_service(fails) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert "own fault" in answers[0].reason


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_a_refused_connection_is_an_error(scheme):
    async with http_service(echo()) as url:
        port = url.split(":")[2].split("/")[0]
    answers = await scored({"service": f"{scheme}://127.0.0.1:{port}"})
    assert {answer.status for answer in answers} == {ERROR}
    assert "check that it runs" in answers[0].reason


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_a_server_that_never_answers_runs_into_the_deadline(scheme):
    async with silent_service() as port:
        answers = await scored({"service": f"{scheme}://127.0.0.1:{port}"}, seconds=0.5)
    assert {answer.status for answer in answers} == {ERROR}


@asynccontextmanager
async def silent_service():
    released = asyncio.Event()

    async def handle(_reader, writer):
        await released.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        released.set()
        server.close()


async def test_a_grader_that_hangs_runs_into_the_deadline():
    answers = await scored({"grader": {"type": "python", "source": "def grade(sample, item):\n    while True: pass"}}, seconds=1.0)
    assert {answer.status for answer in answers} == {ERROR}


async def test_a_scorer_that_comes_back_is_used_again():
    async with grpc_service(echo()) as url:
        scorer = scorer_for(json.dumps({"service": url}), SETTINGS)
        assert {answer.status for answer in await scorer.score(REQUEST, 10.0)} == {OK}
        port = int(url.rsplit(":", 1)[1])
    assert {answer.status for answer in await scorer.score(REQUEST, 1.0)} == {ERROR}
    server = grpc.aio.server()
    reward_service_pb2_grpc.add_RewardServiceServicer_to_server(Servicer(echo()), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    async with asyncio.timeout(60):
        while {answer.status for answer in await scorer.score(REQUEST, 5.0)} != {OK}:  # noqa: ASYNC110 - the server comes up on its own
            await asyncio.sleep(0.1)
    await server.stop(None)
    await scorer.close()


async def test_the_http_request_is_as_promised():
    seen = {}

    async def respond(head, body, writer):
        seen.update(head=head.decode().lower(), body=json.loads(body))
        await write_json(writer, {"results": [result(name) for name in IDS]})

    async with raw_http_service(respond) as url:
        await scored({"service": url}, seconds=7.5)
    sample = {"sample_id": "0.0", "group_id": "0", "prompt": "7+5=", "response": "12", "item": {"answer": 12}}
    sample |= {"finish_reason": "stop", "weight_version": 4}
    assert seen["body"]["samples"][0] == sample
    assert (seen["body"]["run_id"], seen["body"]["deadline_ms"]) == ("run-1", 7500)
    assert seen["head"].startswith("post /score http/1.1")
    assert f"host: {url.split('/')[2]}" in seen["head"]


@pytest.mark.parametrize("kind", SERVICES)
async def test_an_address_that_refuses_gives_way_to_the_next(kind, monkeypatch):
    async def two_addresses(_policy, url):
        port = int(url.split(":")[2].split("/")[0])
        return Endpoint("scorer", port, (ipaddress.ip_address("127.0.0.9"), ipaddress.ip_address("127.0.0.1")))

    monkeypatch.setattr(AddressPolicy, "resolve", two_addresses)
    async with SERVICES[kind](echo()) as url:
        assert {answer.status for answer in await scored({"service": url})} == {OK}


@pytest.mark.parametrize(("bind", "host"), [("127.0.0.1", "localhost"), ("::1", "[::1]")])
async def test_the_name_is_sent_though_the_checked_address_is_called(bind, host):
    heads = []

    async def respond(head, _body, writer):
        heads.append(head.decode().lower())
        await write_json(writer, {"results": [result(name) for name in IDS]})

    async with raw_http_service(respond, bind) as url:
        named = url.replace("127.0.0.1", host)
        assert {answer.status for answer in await scored({"service": named})} == {OK}
    assert f"host: {named.split('/')[2]}\r\n" in heads[0]


async def test_the_trace_goes_with_the_request():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    heads = []

    async def respond(head, _body, writer):
        heads.append(head.decode().lower())
        await write_json(writer, {"results": []})

    with trace.use_span(TracerProvider().get_tracer("test").start_span("score")) as span:
        async with raw_http_service(respond) as url:
            await scored({"service": url})
    assert f"traceparent: 00-{span.get_span_context().trace_id:032x}" in heads[0]


ODD_DOCUMENTS = [[], "text", None, 3, {}, {"results": None}, {"results": {"0.0": 1}}, {"results": [None, 3, "x", {}, {"sample_id": 5}]}]


@pytest.mark.parametrize("document", ODD_DOCUMENTS)
async def test_json_of_another_shape_is_an_error(document):
    async def respond(_head, _body, writer):
        await write_json(writer, document)

    async with raw_http_service(respond) as url:
        assert {answer.status for answer in await scored({"service": url})} == {ERROR}


@pytest.mark.parametrize(
    "odd",
    [
        {"reward": "1.0"},
        {"reward": None},
        {"reward": True},
        {"reward": 10**400},
        {"components": [1]},
        {"components": {"x": "y"}},
        {"status": None},
    ],
)
async def test_a_result_of_other_types_spoils_its_sample_alone(odd):
    async with http_service(lambda _asked: [result("0.0"), result("0.1") | odd, result("1.0")]) as url:
        assert [answer.status for answer in await scored({"service": url})] == [OK, ERROR, OK]


@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "404 Not Found", "204 No Content", "201 Created", "302 Found", "307 Temporary Redirect"]
)
async def test_any_status_but_200_is_an_error_and_redirects_are_not_followed(status):
    async with http_service(echo()) as elsewhere:

        async def respond(_head, _body, writer):
            writer.write(f"HTTP/1.1 {status}\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())

        async with raw_http_service(respond) as url:
            answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert status[:3] in answers[0].reason


async def flood(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    for _ in range(2 * answer_bytes(3) >> 20):
        writer.write(chunk)
        await writer.drain()


async def trickle(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n \r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def cut_short(writer):
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"results": [')


async def no_json(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n<html")


async def no_http(writer):
    writer.write(b"SSH-2.0-OpenSSH\r\n")


async def deep(writer):
    body = b"[" * 100_000
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.parametrize(
    ("answer", "seconds"), [(flood, 30.0), (trickle, 0.5), (cut_short, 10.0), (no_json, 10.0), (no_http, 10.0), (deep, 10.0)]
)
async def test_a_body_that_is_endless_huge_short_or_nonsense_is_an_error(answer, seconds):
    async def respond(_head, _body, writer):
        await answer(writer)

    async with raw_http_service(respond) as url:
        assert {answer.status for answer in await scored({"service": url}, seconds)} == {ERROR}


async def test_a_small_body_that_would_fill_the_memory_is_not_parsed():
    """Three megabytes of empty objects would be a hundred in Python; three samples need less."""

    async def respond(_head, _body, writer):
        body = b'{"results": [' + b"{}," * 1_200_000 + b"{}]}"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with raw_http_service(respond) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert "more than" in answers[0].reason


@pytest.mark.parametrize(
    "url", ["http://b\u00fccher.example:9/x", "http://127.0.0.1:9/\u00fc\ud800", "http://x\u0000y:9/", "http://a\nb:9/"]
)
async def test_an_odd_url_is_an_error_too(url):
    assert {answer.status for answer in await scored({"service": url})} == {ERROR}


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("host", ["169.254.169.254", "0.0.0.0", "10.0.0.1", "no-such-host.invalid"])
async def test_a_refused_address_is_an_error(scheme, host):
    answers = await scored({"service": f"{scheme}://{host}:9"}, seconds=5.0)
    assert {answer.status for answer in answers} == {ERROR}
    assert host in answers[0].reason


@pytest.mark.parametrize(
    "reward",
    [{}, {"grader": {"type": "nothing"}}, {"service": "ftp://x"}, {"grader": {"type": "string_check", "input": "{{", "reference": ""}}],
)
async def test_a_section_that_makes_no_scorer_is_an_error_for_all(reward):
    assert {answer.status for answer in await scored(reward)} == {ERROR}
