"""The same promises of every kind of scorer, kept against scorers that lie, hang and die (R6)."""

import asyncio
import json
import math
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from scorer_lab import (
    ERROR,
    INVALID,
    OK,
    REQUEST,
    SERVICES,
    SETTINGS,
    Servicer,
    echo,
    grpc_service,
    http_service,
    result,
    scored,
)

from gradbus.v1 import reward_service_pb2_grpc
from gradbus_reward.graders.base import Capacity
from gradbus_reward.scorers.factory import create_scorer


@pytest.fixture(params=["http", "grpc"])
def service(request):
    return SERVICES[request.param]


GOOD_GRADERS = {
    "string_check": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"},
    "python": {"type": "python", "source": "def grade(sample, item):\n    return sample['output_text'] == str(item['answer'])"},
}


@pytest.mark.parametrize("kind", GOOD_GRADERS)
async def test_a_grader_scores_every_sample(kind):
    assert [(answer.status, answer.reward) for answer in await scored({"grader": GOOD_GRADERS[kind]})] == [(OK, 1.0)] * 3


async def test_results_in_any_order_reach_their_samples(service):
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
async def test_a_malformed_result_is_an_error_for_its_sample_alone(service, spoil):
    async with service(echo(SPOILT[spoil])) as url:
        first, second, third = await scored({"service": url})
    assert [(first.status, first.reward), (third.status, third.reward)] == [(OK, 0.0), (OK, 2.0)]
    assert second.status == ERROR


async def test_text_that_utf8_cannot_encode_is_replaced():
    async with http_service(
        lambda _asked: [result("0.0", components={"\ud800": 1.0}), result("0.1", status="error", reason="\udfff!"), result("\ud800")]
    ) as url:
        first, second, third = await scored({"service": url})
    assert (dict(first.components), second.reason, third.status) == ({"?": 1.0}, "?!", ERROR)


async def test_results_for_unknown_ids_change_nothing(service):
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
    answers = await scored({"service": f"{scheme}://127.0.0.1:{port}"}, seconds=4.0)
    assert {answer.status for answer in answers} == {ERROR}
    assert "check that it runs" in answers[0].reason


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_a_server_that_never_responds_runs_into_the_deadline(scheme):
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
        scorer = create_scorer(json.dumps({"service": url}), SETTINGS, Capacity())
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


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_scorer_that_starts_late_is_waited_for_at_first(kind):
    async with http_service(echo()) as url:
        port = int(url.split(":")[2].split("/")[0])
    scorer = create_scorer(json.dumps({"service": f"{kind}://127.0.0.1:{port}"}), SETTINGS, Capacity())
    call = asyncio.create_task(scorer.score(REQUEST, 60.0))
    await asyncio.sleep(0.5)
    assert not call.done()
    async with SERVICES[kind](echo(), port):
        assert {answer.status for answer in await call} == {OK}
    assert {answer.status for answer in await scorer.score(REQUEST, 60.0)} == {ERROR}, "a scorer that has been there is not waited for"
    await scorer.close()
