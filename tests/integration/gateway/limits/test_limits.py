"""What one key and one address may do: beyond it the gateway answers 429 and says when to come again."""

import asyncio
import socket
import time

import httpx2
import pytest

from gradbus.experience import ExperienceLog
from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.sample_pb2 import Sample

RATES = {
    "limit_requests_per_second": 0.2,
    "limit_request_burst": 40,
    "limit_unauthenticated_per_second": 0.01,
    "limit_unauthenticated_burst": 20,
}
SLOTS = {"limit_requests": 3, "limit_followers": 2, "limit_uploads": 1, "limit_sign_in_burst": 2}


@pytest.fixture
def rate_limited(gateway_with):
    """Address of a gateway whose buckets are full."""
    return gateway_with(**RATES)


@pytest.fixture(scope="module")
def url(gateway_with):
    """Address of a gateway with few slots."""
    return gateway_with(**SLOTS)


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def checked_429(answer):
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["type"] == "urn:gradbus:problem:too-many-requests"
    return answer


def test_a_key_that_asks_too_often_waits_and_another_key_does_not(stack, rate_limited):
    with httpx2.Client(base_url=rate_limited, timeout=60) as http:
        answers = [http.get("/v1/caller", headers=bearer(stack.reader_key)) for _ in range(60)]
        assert {answer.status_code for answer in answers[:40]} == {200}
        refused = checked_429(next(answer for answer in answers if answer.status_code == 429))
        assert http.get("/v1/caller", headers=bearer(stack.key)).status_code == 200
        time.sleep(int(refused.headers["retry-after"]))
        assert http.get("/v1/caller", headers=bearer(stack.reader_key)).status_code == 200


def test_guesses_at_keys_are_refused_and_the_right_key_is_not(stack, rate_limited):
    with httpx2.Client(base_url=rate_limited, timeout=60) as http:
        answers = [http.get("/v1/runs", headers=bearer("abc.def")).status_code for _ in range(30)]
        assert answers[:20] == [401] * 20
        assert answers[-1] == 429
        checked_429(http.get("/v1/runs", headers={"Cookie": "gradbus-session=abc"}))
        checked_429(http.get("/"))
        checked_429(http.get("/openapi.json", headers=bearer(stack.key)))  # for which no key is asked, nor one counted
        assert http.get("/v1/runs", headers=bearer(stack.key)).status_code == 200
        assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("OPTIONS", "/v1/runs"), ("PUT", "/v1/runs")])
def test_a_guessed_key_counts_for_its_address_where_no_route_asks_for_one(stack, rate_limited, method, path):
    with httpx2.Client(base_url=rate_limited, timeout=60) as http:
        answers = [http.request(method, path, headers=bearer("abc.def")).status_code for _ in range(30)]
        assert 429 not in answers[:20]
        assert answers[-1] == 429
        assert http.request(method, path, headers=bearer(stack.key)).status_code == answers[0]


def test_an_address_that_is_made_up_has_the_bucket_of_its_connection(rate_limited):
    with httpx2.Client(base_url=rate_limited, timeout=60) as http:
        answers = [http.get("/v1/runs", headers={"X-Forwarded-For": f"192.0.2.{number}"}).status_code for number in range(30)]
    assert answers[-1] == 429


def test_attempts_to_sign_in_are_few(url):
    with httpx2.Client(base_url=url, headers={"Origin": url}, timeout=60) as http:
        answers = [http.post("/sign-in", json={"code": "guessed"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [410, 410, 429]
    checked_429(answers[-1])


def test_sign_in_links_are_few(stack, url):
    with httpx2.Client(base_url=url, headers=bearer(stack.key), timeout=60) as http:
        assert [http.post("/v1/sign-ins").status_code for _ in range(3)] == [201, 201, 429]


async def test_a_key_follows_so_many_streams_and_a_slot_comes_back(stack, url, submitted):
    headers = bearer(stack.key) | {"Accept": "text/event-stream"}
    path = f"/v1/runs/{submitted['id']}/events"
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        async with http.stream("GET", path), http.stream("GET", path) as second:
            assert second.status_code == 200
            checked_429(await http.get(path))
            assert (await http.get(path, headers=bearer(stack.key))).status_code == 429  # of the same kind, whatever it accepts
            assert (await http.get(path, headers={"Accept": "application/json"})).status_code == 200
        async with asyncio.timeout(60):
            while True:
                async with http.stream("GET", path) as again:
                    if again.status_code == 200:
                        break
                await asyncio.sleep(0.2)


async def test_lists_of_a_key_wait_for_their_turn_and_are_all_answered(stack, gateway_with, submitted):
    url = gateway_with(limit_lists=1)
    path = f"/v1/runs/{submitted['id']}"
    async with (
        httpx2.AsyncClient(base_url=url, headers=bearer(stack.key), timeout=60) as http,
        http.stream("GET", f"{path}/events", headers={"Accept": "text/event-stream"}) as stream,
    ):
        assert stream.status_code == 200, "a follower keeps no turn"
        answers = await asyncio.gather(*map(http.get, ("/v1/runs?limit=1000", "/v1/workers", f"{path}/samples", f"{path}/events") * 5))
    assert [answer.status_code for answer in answers] == [200] * 20


class Sending:
    """A request that is in progress: the gateway has asked for its body, which is not sent yet."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, url, path, key):
        address = url.removeprefix("http://")
        reader, writer = await asyncio.open_connection(*address.split(":"))
        head = (f"POST {path} HTTP/1.1", f"Host: {address}", f"Authorization: Bearer {key}", "Content-Length: 2048", "Expect: 100-continue")
        writer.write("\r\n".join((*head, "", "")).encode())
        async with asyncio.timeout(60):
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        return cls(reader, writer)

    async def finish(self):
        """Sends the body; the status of the answer."""
        self._writer.write(b"x" * 2048)
        async with asyncio.timeout(60):
            status = int((await self._reader.readline()).split()[1])
        self._writer.close()
        return status


async def test_a_key_uploads_so_much_at_a_time(stack, url):
    async with httpx2.AsyncClient(base_url=url, headers=bearer(stack.key), timeout=60) as http:
        upload = await Sending.begin(url, "/v1/files", stack.key)
        refused = checked_429(await http.post("/v1/files", content=b"small"))
        assert "upload" in refused.json()["detail"]
        assert await upload.finish() == 201
        assert (await http.post("/v1/files", content=b"small")).status_code == 201


async def test_a_response_that_nobody_reads_is_a_request_in_progress(stack, gateway_with, submitted, buffer):
    url = gateway_with(limit_requests=1)
    group = Group(samples=[Sample(sample_id="0.0", text="x" * (16 << 20))])
    await ExperienceLog(buffer, submitted["id"]).append(1, {0: LogEntry(verdict=VERDICT_TRAIN, group=group.SerializeToString())})
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((host, int(port)))
        lines = (f"GET /v1/runs/{submitted['id']}/samples HTTP/1.1", "Host: localhost", f"Authorization: Bearer {stack.key}", "", "")
        reader.sendall("\r\n".join(lines).encode())
        assert b" 200 OK" in reader.recv(1000)
        checked_429(httpx2.get(url + "/v1/caller", headers=bearer(stack.key), timeout=60))
    async with asyncio.timeout(60):
        while httpx2.get(url + "/v1/caller", headers=bearer(stack.key), timeout=60).status_code != 200:  # noqa: ASYNC110 - only a request tells
            await asyncio.sleep(0.1)


async def test_a_key_has_so_many_requests_in_progress_and_another_key_does_not_notice(stack, url):
    async with httpx2.AsyncClient(base_url=url, headers=bearer(stack.key), timeout=60) as http:
        submissions = [await Sending.begin(url, "/v1/runs", stack.key) for _ in range(3)]
        checked_429(await http.get("/v1/caller"))
        assert (await http.get("/v1/caller", headers=bearer(stack.reader_key))).status_code == 200
        assert {await submission.finish() for submission in submissions} == {400}
        assert (await http.get("/v1/caller")).status_code == 200
