"""Failures inside become problem documents that tell nothing of the inside."""

import httpx2
import pytest
from fastapi import FastAPI

from gradbus.errors import StorageError
from gradbus_gateway.http import problems


@pytest.fixture
async def http():
    app = FastAPI()
    problems.register(app)

    @app.get("/crash")
    async def crash():
        raise ZeroDivisionError("the secret reason")

    @app.get("/away")
    async def away():
        raise StorageError("the bucket does not answer")

    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_a_crash_is_500_without_its_reason(http):
    answer = await http.get("/crash")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text


async def test_a_service_that_is_unreachable_is_503_with_a_retry(http):
    answer = await http.get("/away")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"] == "urn:gradbus:problem:unavailable"
