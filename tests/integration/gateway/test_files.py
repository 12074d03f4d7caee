"""Files by digest."""

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


def test_a_form_without_the_part_says_how(http):
    answer = http.post("/v1/files", files={"other": ("x", b"x")})
    assert answer.status_code == 422
    assert "-F file=@" in answer.json()["detail"]


def test_head_tells_what_is_there(http):
    stored = http.post("/v1/files", content=b"there").json()["id"]
    assert http.head(f"/v1/files/{stored}").status_code == 200
    assert http.head(f"/v1/files/{digest_of(b'not there')}").status_code == 404
    assert http.get(f"/v1/files/{digest_of(b'not there')}").json()["type"] == "urn:gradbus:problem:no-such-file"


def test_what_is_no_digest_is_refused(http):
    assert http.get("/v1/files/sha256:..").status_code == 422


def test_an_empty_file_is_a_file(http):
    assert http.post("/v1/files", content=b"").json() == {"object": "file", "id": digest_of(b""), "bytes": 0}
