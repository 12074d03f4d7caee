"""Nothing under /v1 answers without a key, and a key does what its scopes say."""

import time
from pathlib import Path

import httpx2
import pytest

from gradbus.access.api_keys import new_api_key, read_api_keys, write_api_keys
from gradbus_gateway.app import create_app

ROUTES = [(method.upper(), path) for path, item in create_app().openapi()["paths"].items() for method in item if path.startswith("/v1")]
OPEN_TO_READERS = {"/v1/sign-ins"}
WRITES = [(method, path) for method, path in ROUTES if method == "POST" and path not in OPEN_TO_READERS]


def at(path):
    return path.replace("{run_id}", "run-0").replace("{digest}", "sha256:" + "0" * 64)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer abc.def"}, {"Authorization": "Basic YTpi"}])
def test_every_route_refuses_a_caller_without_a_valid_key(stack, method, path, given):
    answer = httpx2.request(method, stack.url + at(path), headers=given, timeout=60)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_a_reader_cannot_write(stack, method, path):
    answer = httpx2.request(method, stack.url + at(path), headers={"Authorization": f"Bearer {stack.reader_key}"}, timeout=60)
    assert answer.status_code == 403
    assert "lacks the scope" in answer.json()["detail"]


def test_a_key_with_another_secret_is_refused(stack):
    key_id = stack.key.partition(".")[0]
    answer = httpx2.get(
        stack.url + "/v1/runs", headers={"Authorization": f"Bearer {key_id}.{stack.reader_key.partition('.')[2]}"}, timeout=60
    )
    assert answer.status_code == 401


def test_a_reader_can_read(stack):
    assert httpx2.get(stack.url + "/v1/runs", headers={"Authorization": f"Bearer {stack.reader_key}"}, timeout=60).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
def test_probes_and_the_description_are_open(stack, path):
    assert httpx2.get(stack.url + path, timeout=60).status_code == 200


def test_the_gateway_stays_small(stack, start_gateway, stored_spec):
    """One of its own: what the shared one has held at most is up to the tests before."""
    url, gateway = start_gateway()
    given = {"headers": {"Authorization": f"Bearer {stack.key}"}, "timeout": 60}
    assert httpx2.post(f"{url}/v1/runs", json=stored_spec, **given).status_code == 201
    assert httpx2.get(f"{url}/v1/runs?limit=1000", **given).status_code == 200
    with open(f"/proc/{gateway.pid}/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert resident < 150 * 1024


def test_a_new_key_works_at_once_and_a_revoked_one_soon_no_more(stack):
    path = Path(stack.environment["GRADBUS_API_KEYS_FILE"])
    before = read_api_keys(path)
    key, record = new_api_key("for a moment", ["runs:read"])
    asked = {"headers": {"Authorization": f"Bearer {key}"}}
    assert httpx2.get(stack.url + "/v1/runs", **asked, timeout=60).status_code == 401
    write_api_keys(path, [*before, record])
    assert httpx2.get(stack.url + "/v1/runs", **asked, timeout=60).status_code == 200
    write_api_keys(path, before)
    time.sleep(0.6)
    assert httpx2.get(stack.url + "/v1/runs", **asked, timeout=60).status_code == 401
