"""Followers and slow sockets at once: the others are answered. How fast, `loadtests/crowded_gateway.py` measures."""

import socket
from contextlib import ExitStack

import httpx2
import pytest

FOLLOWERS, SLOW = 150, 90


@pytest.fixture
def crowd(stack, submitted):
    """Raw sockets: followers that read nothing, heads and bodies that never end, and readers that do not read."""
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    key = f"Authorization: Bearer {stack.key}\r\n"
    heads = [
        "GET /v1/runs HTTP/1.1\r\nX-Slow: ",
        f"POST /v1/runs HTTP/1.1\r\n{key}Content-Length: 1000000\r\n\r\n",
        f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n{key}\r\n" * 8,
    ]
    follow = f"GET /v1/runs/{submitted['id']}/events HTTP/1.1\r\n{key}Accept: text/event-stream\r\n\r\n"
    with ExitStack() as sockets:
        for head in [follow] * FOLLOWERS + heads * (SLOW // 3):
            one = sockets.enter_context(socket.create_connection((host, int(port)), timeout=60))
            one.sendall(head.encode())
        yield


def test_the_others_are_answered(stack, crowd, submitted):
    headers = {"Authorization": f"Bearer {stack.reader_key}"}
    for path in ("/healthz", "/v1/runs?limit=20", f"/v1/runs/{submitted['id']}", "/v1/caller") * 5:
        assert httpx2.get(stack.url + path, headers=headers, timeout=60).status_code == 200
