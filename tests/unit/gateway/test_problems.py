"""Failures inside become problem documents that tell nothing of the inside."""

import httpx2
import pytest
from fastapi import FastAPI

from gradbus.control.annotations import AnnotationChange
from gradbus.errors import DiskError, ObjectMissingError, StorageError
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

    @app.get("/gone")
    async def gone():
        raise ObjectMissingError("the blob was deleted")

    @app.get("/full")
    async def full():
        raise DiskError("cannot write; set GRADBUS_CACHE_DIR")

    @app.patch("/run")
    async def annotate(change: AnnotationChange):
        return change

    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_a_crash_is_500_without_its_reason(http):
    answer = await http.get("/crash")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/away", "/gone"])
async def test_what_a_service_behind_does_not_give_is_503_with_a_retry(http, path):
    answer = await http.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"] == "urn:gradbus:problem:unavailable"


async def test_a_disk_that_cannot_be_written_is_503_and_says_what_to_do(http):
    answer = await http.get("/full")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert answer.json()["detail"] == "cannot write; set GRADBUS_CACHE_DIR"


@pytest.mark.parametrize("tag", ["-a", "two words", "a\n", "", "x" * 65])
async def test_the_rule_of_a_tag_is_told_in_words(http, tag):
    answer = await http.patch("/run", json={"add_tags": ["good", tag]})
    rule = "a tag has up to 64 letters A to Z, digits and . _ : / -, and begins with a letter or a digit"
    assert (answer.status_code, answer.json()["errors"]) == (
        422,
        [{"path": "body.add_tags.1", "message": rule, "given": repr(tag)}],
    )
    assert (await http.patch("/run", json={"add_tags": ["sweep/3", "9.a_b:c-d"]})).status_code == 200
