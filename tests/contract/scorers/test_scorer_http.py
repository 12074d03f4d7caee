"""What is sent to a scorer over HTTP and where to, and that no answer however odd becomes a reward (R6)."""

import asyncio
import ipaddress
import json

import pytest
from scorer_lab import (
    ERROR,
    IDS,
    OK,
    REQUEST,
    SERVICES,
    SETTINGS,
    echo,
    http_service,
    raw_http_service,
    result,
    scored,
    write_json,
)

from gradbus.user_services.addresses import AddressPolicy, Endpoint
from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity
from gradbus_reward.scorers.factory import create_scorer
from gradbus_reward.scorers.results import max_response_bytes


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
    async def two_addresses(_policy, url, _threads):
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
        {"reward": 1e200},
        {"reward": 1e39},
        {"reward": [[[{}]]]},
        {"components": {"x": 10**400}},
        {"components": {"x": True}},
        {"components": [1]},
        {"components": {"x": "y"}},
        {"status": None},
    ],
)
async def test_a_result_of_other_types_spoils_its_sample_alone(odd):
    async with http_service(lambda _asked: [result("0.0"), result("0.1") | odd, result("1.0")]) as url:
        answers = await scored({"service": url})
    assert [answer.status for answer in answers] == [OK, ERROR, OK]
    assert answers[1].permanent


async def test_a_number_with_more_digits_than_python_reads_spoils_its_sample_alone():
    async def respond(_head, _body, writer):
        body = json.dumps({"results": [result(name, 0.5) for name in IDS]}).replace("0.5", "9" * 5000, 1).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with raw_http_service(respond) as url:
        assert [answer.status for answer in await scored({"service": url})] == [ERROR, OK, OK]


async def test_a_reason_that_is_no_text_is_no_reason():
    deep = []
    for _ in range(400):
        deep = [deep]
    async with http_service(lambda _asked: [result(name, status="error", reason=deep, permanent=True) for name in IDS]) as url:
        answers = await scored({"service": url})
    assert {(answer.status, answer.reason, answer.permanent) for answer in answers} == {(ERROR, "the scorer gave no reason", True)}


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
    for _ in range(2 * max_response_bytes(3) >> 20):
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


async def chunks_of_a_byte(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n \r\n" * 1000)
        await writer.drain()


async def interim_responses(writer):
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)
        await writer.drain()


async def headers(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"a: b\r\n" * 1000)
        await writer.drain()


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


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(chunks_of_a_byte, "chunks; send it whole"), (interim_responses, "with a short head"), (headers, "with a short head")],
)
async def test_a_response_that_costs_more_to_parse_than_to_send_is_cut_off(answer, cause):
    """The scorers of all runs share an event loop: such a scorer would keep it busy until the deadline, and an hour is allowed."""

    async def respond(_head, _body, writer):
        await answer(writer)

    async with raw_http_service(respond) as url:
        answers = await scored({"service": url}, seconds=3600.0)
    assert {answer.status for answer in answers} == {ERROR}
    assert cause in answers[0].reason


async def test_a_response_in_some_chunks_after_an_interim_response_is_read():
    async def respond(_head, _body, writer):
        body = json.dumps({"results": [result(name) for name in IDS]}).encode()
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 10):
            writer.write(b"%x\r\n%s\r\n" % (len(body[at : at + 10]), body[at : at + 10]))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with raw_http_service(respond) as url:
        assert {answer.status for answer in await scored({"service": url})} == {OK}


async def test_the_cause_is_named_behind_a_long_url():
    answers = await scored({"service": "http://127.0.0.1:9/" + "a" * 2000})
    assert {answer.status for answer in answers} == {ERROR}
    assert answers[0].reason.endswith("check that it runs")


async def test_cookies_of_a_scorer_are_not_sent_back():
    heads = []

    async def respond(head, _body, writer):
        heads.append(head.lower())
        body = json.dumps({"results": [result(name) for name in IDS]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with raw_http_service(respond) as url:
        scorer = create_scorer(json.dumps({"service": url}), SETTINGS, Capacity())
        for _ in range(2):
            assert {answer.status for answer in await scorer.score(REQUEST, 30.0)} == {OK}
        await scorer.close()
    assert [b"cookie" in head for head in heads] == [False, False]


async def test_the_rows_of_a_request_are_sent_as_they_are():
    rows, seen = ['{"a":  1.50, "b": "\\u00e4"}', "", '{"ü": [1, {"c": null}]}'], []

    async def respond(_head, body, writer):
        seen.append(body)
        await write_json(writer, {"results": [result(name) for name in IDS]})

    samples = [reward_pb2.ScoreSample(sample_id=name, item_json=row) for name, row in zip(IDS, rows, strict=True)]
    async with raw_http_service(respond) as url:
        scorer = create_scorer(json.dumps({"service": url}), SETTINGS, Capacity())
        assert {answer.status for answer in await scorer.score(reward_pb2.ScoreRequest(samples=samples), 30.0)} == {OK}
        await scorer.close()
    assert [sample["item"] for sample in json.loads(seen[0])["samples"]] == [json.loads(row or "{}") for row in rows]
    assert all(row.encode() in seen[0] for row in rows)


async def test_a_row_that_is_no_json_is_an_error_that_names_its_sample():
    scorer = create_scorer('{"service": "http://127.0.0.1:9/"}', SETTINGS, Capacity())
    answers = await scorer.score(reward_pb2.ScoreRequest(samples=[reward_pb2.ScoreSample(sample_id="7.1", item_json="{")]), 30.0)
    await scorer.close()
    assert (answers[0].status, "the row of sample 7.1 is not JSON" in answers[0].reason) == (ERROR, True)


async def test_a_small_body_that_would_fill_the_memory_is_not_parsed():
    """Three megabytes of empty objects would be a hundred in Python; three samples need less."""

    async def respond(_head, _body, writer):
        body = b'{"results": [' + b"{}," * 1_200_000 + b"{}]}"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with raw_http_service(respond) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert "more than" in answers[0].reason


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0"])
async def test_a_response_of_more_values_than_results_have_is_not_parsed(value):
    """No other thread runs while JSON is parsed: a megabyte of empty lists would stop the scores of every run."""

    async def respond(_head, _body, writer):
        body = b'{"results": [' + b",".join([value] * 250_000) + b"]}"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with raw_http_service(respond) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert "values; send one short result per sample" in answers[0].reason


async def test_far_more_results_than_samples_are_not_read():
    async with http_service(lambda _asked: [{}] * 5000) as url:
        answers = await scored({"service": url})
    assert {answer.status for answer in answers} == {ERROR}
    assert "5000 results for 3 samples" in answers[0].reason


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
