"""Files by digest."""

import asyncio

import pytest

from gradbus.bus import Buckets
from gradbus.control.condemned import Condemned, key_of
from gradbus.ids import digest_of


def test_a_raw_body_is_stored_under_its_digest(http):
    answer = http.post("/v1/files", content=b"some bytes")
    assert answer.status_code == 201
    assert answer.json() == {"object": "file", "id": digest_of(b"some bytes"), "bytes": 10}
    assert http.get(answer.headers["location"]).content == b"some bytes"


def test_a_form_is_stored_as_its_part(http):
    large = bytes(range(256)) * 8192
    answer = http.post("/v1/files", files={"file": ("train.jsonl", large)})
    assert answer.json()["id"] == digest_of(large)
    assert http.get(f"/v1/files/{digest_of(large)}").content == large


@pytest.mark.parametrize("form", [{"files": {"other": ("x", b"x")}}, {"files": {"file": ("x", b"x")}, "data": {"other": "y"}}])
def test_a_form_without_the_part_alone_says_how(http, form):
    answer = http.post("/v1/files", **form)
    assert answer.status_code == 422
    assert "-F file=@" in answer.json()["detail"]


def test_head_tells_what_is_there(http):
    stored = http.post("/v1/files", content=b"there").json()["id"]
    assert http.head(f"/v1/files/{stored}").status_code == 200
    assert http.head(f"/v1/files/{digest_of(b'not there')}").status_code == 404
    assert http.get(f"/v1/files/{digest_of(b'not there')}").json()["type"] == "urn:gradbus:problem:no-such-file"


def test_what_is_no_digest_is_refused(http):
    assert http.get("/v1/files/sha256:..").status_code == 422


@pytest.mark.parametrize("upload", [{"content": b""}, {"files": {"file": ("train.jsonl", b"")}}])
def test_an_empty_upload_is_refused(http, upload):
    answer = http.post("/v1/files", **upload)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:gradbus:problem:empty-file")
    assert http.head(f"/v1/files/{digest_of(b'')}").status_code == 404


@pytest.mark.parametrize("way", ["upload", "form", "head"])
async def test_a_file_that_was_just_used_is_not_deleted(http, bus, objects, way):
    """Nobody names it, so the weight store had condemned it."""
    content = f"used by {way}".encode()
    digest = http.post("/v1/files", content=content).json()["id"]
    condemned = await bus.bucket(Buckets.CONDEMNED)
    await condemned.put(key_of(digest), Condemned(since_unix_ns=1).to_bytes())
    async with condemned.view() as view, asyncio.timeout(60):
        while key_of(digest) in view.entries:
            await asyncio.sleep(0.05)  # until the gateway has heard of it
            match way:
                case "upload":
                    http.post("/v1/files", content=content)
                case "form":
                    http.post("/v1/files", files={"file": ("f", content)})
                case "head":
                    assert http.head(f"/v1/files/{digest}").status_code == 200
    assert await objects.has_blob(digest)


async def test_a_submission_waits_for_a_file_that_is_being_deleted_and_then_misses_it(http, bus, objects, stored_spec):
    mine = await objects.put_blob(b'{"prompt": "on its way out", "answer": "2"}\n')
    other = http.post("/v1/files", content=b"condemned after it").json()["id"]
    condemned = await bus.bucket(Buckets.CONDEMNED)
    await condemned.put(key_of(mine), Condemned(since_unix_ns=1, deleting=True).to_bytes())
    await condemned.put(key_of(other), Condemned(since_unix_ns=1).to_bytes())
    async with asyncio.timeout(60):
        while await condemned.get(key_of(other)) is not None:  # the gateway that keeps it has heard of both
            await asyncio.sleep(0.05)
            assert http.head(f"/v1/files/{other}").status_code == 200
    spec = stored_spec | {"data": stored_spec["data"] | {"train": mine}}
    submitting = asyncio.create_task(asyncio.to_thread(http.post, "/v1/runs", json=spec))
    await asyncio.sleep(0.5)
    assert not submitting.done()
    await objects.delete_blob(mine)
    await condemned.purge(key_of(mine))
    answer = await submitting
    assert answer.status_code == 422
    assert [fault["path"] for fault in answer.json()["errors"]] == ["data.train"]
