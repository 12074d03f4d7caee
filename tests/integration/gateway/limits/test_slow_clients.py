"""Clients that speak raw HTTP, slowly or too much. Each costs a socket for a while, and the gateway goes on answering."""

import json
import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import httpx2
import psutil
import pytest

from gradbus.bus import EventLog

BOUNDS = {
    "connections_total": 60,
    "connections_head_seconds": 2,
    "connections_body_grace_seconds": 2,
    "connections_write_seconds": 2,
    "limit_unauthenticated_burst": 10_000,
}
HEAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def url(gateway_with):
    return gateway_with(**BOUNDS)


@contextmanager
def connected(url, receive_bytes=None):
    """A socket; with `receive_bytes` it takes so much and no more."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.socket() as client:
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(60)
        client.connect((host, int(port)))
        yield client


def rest_of(client):
    """Everything until the gateway closes the connection."""
    received = b""
    try:
        while data := client.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


def wait_until_closed(client):
    """Waits until the gateway has closed its side, which a client that does not read is not told."""
    deadline = time.monotonic() + 60
    while any(one.raddr == client.getsockname() and one.pid for one in psutil.net_connections("tcp")):
        assert time.monotonic() < deadline, "the gateway keeps the connection"
        time.sleep(0.1)


def refused(answer, status, detail):
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].split()[1] == str(status).encode(), answer[:500]
    assert b"content-type: application/problem+json" in lines
    assert b"connection: close" in lines
    assert detail in json.loads(body)["detail"]


def drip(client, data, stop):
    """Sends `data` byte by byte until the other side has closed."""
    for byte in data:
        try:
            client.send(bytes([byte]))
        except OSError:
            return
        if stop.wait(0.05):
            return


@contextmanager
def dripping(client, data):
    stop = threading.Event()
    thread = threading.Thread(target=drip, args=(client, data, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_headers_that_come_byte_by_byte_end_at_a_deadline(url):
    with connected(url) as client, dripping(client, HEAD + b"X-Long: " + b"x" * 10_000):
        refused(rest_of(client), 408, "headers took longer")


def test_a_socket_that_says_nothing_is_closed(url):
    with connected(url) as client:
        assert rest_of(client) == b""


def test_a_second_request_has_the_deadline_of_the_first(url):
    with connected(url) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in client.recv(1 << 16)
        with dripping(client, HEAD + b"X-Long: " + b"x" * 10_000):
            refused(rest_of(client), 408, "headers took longer")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Many: x\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Endless: " + b"x" * 3_000_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Endless: x\r\n" * 300_000,
        b"\r\n" * 1_000_000,
    ],
    ids=["large header", "long address", "many headers", "endless header", "endless headers", "endless lines"],
)
def test_a_head_has_a_size(url, head):
    with connected(url) as client:
        try:
            client.sendall(head)
        except OSError:
            return  # it was closed before everything was sent
        answer = rest_of(client)
        if answer:  # a reset may overtake the response
            refused(answer, 431, "too many or too large headers")


def test_a_head_just_below_the_limit_is_served(url):
    assert httpx2.get(url + "/healthz", headers={"X-Large": "x" * 30_000}, timeout=60).status_code == 200


def test_garbage_is_a_problem(url):
    with connected(url) as client:
        client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        refused(rest_of(client), 400, "no request of HTTP/1.1")


def test_an_unknown_caller_is_refused_before_its_body(url):
    with connected(url) as client:
        client.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        assert b" 401 " in client.recv(1 << 16)


def test_a_body_that_nobody_reads_does_not_hold_the_connection(url):
    with connected(url) as client:
        client.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        with dripping(client, b"x" * 1_000_000):
            assert b" 401 " in rest_of(client)


@pytest.mark.parametrize("encoding", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"])
def test_a_body_that_comes_too_slowly_is_refused(stack, url, encoding):
    with connected(url) as client:
        client.sendall(HEAD + b"Authorization: Bearer " + stack.key.encode() + b"\r\n" + encoding + b"\r\n\r\n")
        with dripping(client, b"1\r\nx\r\n" * 100_000):
            refused(rest_of(client), 408, "slower than")


def test_a_body_in_pieces_of_one_byte_is_refused(stack, url):
    with connected(url) as client:
        client.sendall(HEAD + b"Authorization: Bearer " + stack.key.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            client.sendall(b"1\r\nx\r\n" * 100_000)
        except OSError:
            return
        if answer := rest_of(client):
            refused(answer, 400, "too small pieces")


def test_trailers_and_sizes_of_chunks_have_a_size(stack, url):
    """They come behind a body, and so behind the head that is checked."""
    head = HEAD + b"Authorization: Bearer " + stack.key.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    for endless in (b"1\r\nx\r\n0\r\nX-Endless: ", b"1;endless="):
        with connected(url) as client:
            try:
                client.sendall(head + endless + b"x" * 3_000_000)
            except OSError:
                continue
            if answer := rest_of(client):
                refused(answer, 431, "too many or too large headers")


def test_a_body_of_lines_is_accepted_as_it_is_written(stack, url):
    """A program that writes a dataset line by line sends small pieces too."""
    lines = (b'{"prompt": "1+1=", "answer": "2", "comment": "a line of a hundred bytes, as a dataset has them"}\n' for _ in range(3000))
    answer = httpx2.post(url + "/v1/files", content=lines, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60)
    assert answer.status_code == 201


def test_requests_in_a_row_are_answered_and_a_flood_of_them_is_not(url):
    probe = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(url) as client:
        client.sendall(probe * 4)
        received = b""
        while received.count(b'{"status":"ok"}') < 4:
            data = client.recv(1 << 16)
            assert data, "the gateway has closed the connection"
            received += data
    with connected(url) as client:
        try:
            client.sendall(probe * 50_000)
        except OSError:
            return
        assert rest_of(client).count(b"200 OK") < 50


def test_a_reader_that_does_not_read_is_closed(stack, url):
    headers = {"Authorization": f"Bearer {stack.key}"}
    large = os.urandom(1 << 24)
    file = httpx2.post(url + "/v1/files", content=large, headers=headers, timeout=60).json()["id"]
    with connected(url, receive_bytes=4096) as client:
        client.sendall(f"GET /v1/files/{file} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stack.key}\r\n\r\n".encode())
        wait_until_closed(client)  # to read would be what the gateway waits for
        assert len(rest_of(client)) < len(large)
    assert httpx2.get(f"{url}/v1/files/{file}", headers=headers, timeout=60).content == large


def test_sockets_that_stay_open_are_displaced_and_the_api_goes_on_answering(url):
    with ExitStack() as idle:
        for _ in range(150):
            idle.enter_context(connected(url))
        answers = [httpx2.get(url + "/healthz", timeout=60).status_code for _ in range(20)]
    assert answers == [200] * 20


def test_connections_that_still_owe_the_body_of_a_refused_request_are_displaced(url):
    with ExitStack() as owing:
        for _ in range(150):
            client = owing.enter_context(connected(url))
            client.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
            assert b" 401 " in client.recv(1 << 16)
        assert httpx2.get(url + "/healthz", timeout=60).status_code == 200


async def test_a_follower_is_not_displaced_by_sockets_that_stay_open(stack, url, bus, submitted):
    headers = {"Authorization": f"Bearer {stack.key}"}
    log = EventLog(bus, submitted["id"])
    async with (
        httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as http,
        http.sse(f"/v1/runs/{submitted['id']}/events") as stream,
    ):
        assert stream.response.status_code == 200
        with ExitStack() as idle:
            for _ in range(150):
                idle.enter_context(connected(url))
            log.emit("metrics", "after the flood", {})
            await log.wait_until_stored()
            event = await anext(aiter(stream))
        assert json.loads(event.data)["message"] == "after the flood"


def test_the_process_may_open_as_many_files_as_it_is_allowed(stack):
    with open(f"/proc/{stack.gateway_pid}/limits") as limits:
        line = next(line for line in limits if line.startswith("Max open files"))
    assert int(line.split()[3]) == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
