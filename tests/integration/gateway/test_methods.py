"""Methods: `Allow` names all of a path, HEAD is served wherever GET is, and OPTIONS everywhere."""

import httpx2
import pytest


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/runs", "GET, HEAD, OPTIONS, POST"),
        ("/v1/files/sha256:0", "GET, HEAD, OPTIONS"),
        ("/v1/runs/run-0/cancel", "OPTIONS, POST"),
        ("/sign-in", "GET, HEAD, OPTIONS, POST"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ],
)
def test_every_method_of_a_path_is_allowed(http, path, allowed):
    refused = http.put(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    assert refused.headers["content-type"] == "application/problem+json"
    assert allowed in refused.json()["detail"]
    options = http.options(path)
    assert (options.status_code, options.headers["allow"], options.content) == (204, allowed, b"")


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "HEAD"])
def test_a_path_that_is_not_served_allows_nothing(http, method):
    answer = http.request(method, "/v1/nothing")
    assert answer.status_code == 404
    assert "allow" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/caller", "/healthz", "/openapi.json", "/"])
def test_head_answers_as_get_without_the_body(http, path):
    head, got = http.head(path), http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert {**head.headers, "date": ""} == {**got.headers, "date": ""}


def test_head_of_a_history_ends(http, submitted):
    answer = http.head(f"/v1/runs/{submitted['id']}/events", headers={"Accept": "text/event-stream"}, timeout=60)
    assert answer.headers["content-type"] == "application/json"


def test_head_needs_a_key_too(stack):
    assert httpx2.head(stack.url + "/v1/runs", timeout=60).status_code == 401
