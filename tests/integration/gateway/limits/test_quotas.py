"""What one key may own: beyond it the gateway answers 403 and says what to delete."""

import asyncio
import os
from pathlib import Path

import httpx2
import pytest

from gradbus.access.api_keys import SCOPES, new_api_key, read_api_keys, write_api_keys
from gradbus.bus import Buckets
from gradbus.ids import digest_of

QUOTAS = {"quota_unfinished_runs": 2, "quota_runs": 3, "quota_uploaded_bytes": 3_000_000, "quota_uploaded_files": 4}


@pytest.fixture(scope="module")
def own_keys(stack):
    """Makes keys that have nothing yet."""
    path = Path(stack.environment["GRADBUS_API_KEYS_FILE"])

    def make():
        token, record = new_api_key("quota", SCOPES)
        write_api_keys(path, [*read_api_keys(path), record])
        return token

    return make


@pytest.fixture(scope="module")
def url(gateway_with):
    return gateway_with(**QUOTAS)


@pytest.fixture
def limited(url, own_keys):
    """A client with a key of its own."""
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {own_keys()}"}, timeout=60) as http:
        yield http


@pytest.fixture
def other(url, own_keys):
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {own_keys()}"}, timeout=60) as http:
        yield http


FORM = {"Content-Type": "multipart/form-data; boundary=next"}


def form():
    """A form with a file of a megabyte, in pieces."""
    yield b'--next\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    for _ in range(20):
        yield os.urandom(50_000)
    yield b"\r\n--next--\r\n"


def is_exceeded(answer, variable):
    if answer.status_code != 403:
        return False
    assert answer.json()["type"] == "urn:gradbus:problem:quota-exceeded"
    return variable in answer.json()["detail"]


async def until(condition):
    """Waits for what a live view shows a moment later."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - only a request tells
            await asyncio.sleep(0.1)


async def test_a_key_has_so_many_unfinished_runs_and_an_ended_one_makes_room(limited, other, stored_spec, set_state):
    first = limited.post("/v1/runs", json=stored_spec, headers={"Idempotency-Key": "first"}).json()["id"]
    assert limited.post("/v1/runs", json=stored_spec).status_code == 201
    await until(lambda: is_exceeded(limited.post("/v1/runs", json=stored_spec | {"name": ""}), "GRADBUS_QUOTA_UNFINISHED_RUNS"))
    assert is_exceeded(limited.post("/v1/runs", json=stored_spec), "GRADBUS_QUOTA_UNFINISHED_RUNS")
    assert limited.post("/v1/runs", json=stored_spec, headers={"Idempotency-Key": "first"}).json()["id"] == first, "a repeated request"
    assert other.post("/v1/runs", json=stored_spec).status_code == 201
    await set_state(first, "cancelled")
    third = []
    await until(lambda: third.append(limited.post("/v1/runs", json=stored_spec)) or third[-1].status_code == 201)
    limited.get("/v1/runs")  # the list waits for the view from which runs are counted
    await set_state(third[-1].json()["id"], "failed")
    await until(lambda: is_exceeded(limited.post("/v1/runs", json=stored_spec), "GRADBUS_QUOTA_RUNS"))
    assert limited.delete(f"/v1/runs/{first}").status_code == 204
    await until(lambda: limited.post("/v1/runs", json=stored_spec).status_code == 201)


async def test_a_key_uploads_so_many_bytes_and_a_file_that_is_gone_makes_room(limited, other, objects):
    content = os.urandom(2_000_000)
    assert limited.post("/v1/files", content=content).status_code == 201
    assert limited.post("/v1/files", content=content[:100_000]).status_code == 201
    assert is_exceeded(limited.post("/v1/files", content=os.urandom(1_000_000)), "GRADBUS_QUOTA_UPLOADED_BYTES")
    chunks = (os.urandom(100_000) for _ in range(20))
    assert is_exceeded(limited.post("/v1/files", content=chunks), "GRADBUS_QUOTA_UPLOADED_BYTES")
    assert is_exceeded(limited.post("/v1/files", files={"file": ("x", os.urandom(1_000_000))}), "GRADBUS_QUOTA_UPLOADED_BYTES")
    assert is_exceeded(limited.post("/v1/files", content=form(), headers=FORM), "GRADBUS_QUOTA_UPLOADED_BYTES"), "its size is not told"
    assert other.post("/v1/files", content=os.urandom(1_000_000)).status_code == 201


async def test_uploads_at_the_same_time_get_no_more_than_one_after_the_other(url, own_keys):
    both_began = asyncio.Barrier(2)

    async def two_megabytes():
        yield os.urandom(1000)
        await both_began.wait()
        for _ in range(20):
            yield os.urandom(100_000)

    async with httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {own_keys()}"}, timeout=60) as http:
        answers = await asyncio.gather(*(http.post("/v1/files", content=two_megabytes()) for _ in range(2)))
    assert any(is_exceeded(answer, "GRADBUS_QUOTA_UPLOADED_BYTES") for answer in answers)


async def test_files_that_were_deleted_do_not_count(limited, objects):
    files = [os.urandom(1000) for _ in range(4)]
    assert [limited.post("/v1/files", content=file).status_code for file in files] == [201] * 4
    await objects.delete_blob(digest_of(files[0]))
    # The gateway looks for deleted files because the quota is met.
    await until(lambda: limited.post("/v1/files", content=os.urandom(1000)).status_code == 201)
    await until(lambda: is_exceeded(limited.post("/v1/files", content=os.urandom(1000)), "GRADBUS_QUOTA_UPLOADED_FILES"))


async def test_storing_the_same_file_again_counts_once(limited):
    content = os.urandom(900_000)
    for _ in range(6):
        assert limited.post("/v1/files", content=content).status_code == 201


async def test_a_record_that_cannot_be_read_counts_as_an_empty_file(limited, bus):
    key_id = limited.get("/v1/caller").json()["id"]
    await (await bus.bucket(Buckets.RUNS)).put(f"uploads.{key_id}.{'0' * 64}", b"garbage")
    assert limited.post("/v1/files", content=b"after which the gateway knows the record").status_code == 201
    assert limited.post("/v1/files", content=b"some bytes").status_code == 201
