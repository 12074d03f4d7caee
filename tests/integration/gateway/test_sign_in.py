"""From an API key to a browser's session: once, for a while, from the page alone, and with the key's rights."""

import asyncio

import httpx2
import pytest

from gradbus.bus import Buckets
from gradbus.client import Client
from gradbus_gateway.auth import sessions
from gradbus_gateway.auth.sessions import Sessions


def code_of(stack, key=None):
    with Client(stack.url, key or stack.key) as client:
        return client.sign_in_link().partition("#")[2]


def redeem(stack, code, **headers):
    return httpx2.post(f"{stack.url}/sign-in", json={"code": code}, headers={"Origin": stack.url, **headers}, timeout=60)


def cookie_of(answer):
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest.fixture
def signed_in(stack):
    """Headers of a browser that is signed in, as the page sends them."""
    return {**cookie_of(redeem(stack, code_of(stack))), "Origin": stack.url, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def store(bus):
    return Sessions(await bus.bucket(Buckets.SESSIONS))


def test_a_link_signs_in_once(stack):
    code = code_of(stack)
    first, second = redeem(stack, code), redeem(stack, code)
    assert (first.status_code, second.status_code) == (204, 410)
    assert "run `gradbus open` again" in second.json()["detail"]
    assert httpx2.get(f"{stack.url}/v1/runs", headers=cookie_of(first), timeout=60).status_code == 200


class Late:
    """The bucket for one of several who all read a key before any of them writes."""

    def __init__(self, bucket, others):
        self.bucket = bucket
        self.others = others
        self.delete, self.create = bucket.delete, bucket.create

    async def get(self, key):
        entry = await self.bucket.get(key)
        await self.others.wait()
        return entry


async def test_of_many_who_use_a_link_at_once_one_gets_in(bus, store):
    code = await store.new_code("someone")
    bucket, others = await bus.bucket(Buckets.SESSIONS), asyncio.Barrier(4)
    tokens = await asyncio.gather(*(Sessions(Late(bucket, others)).redeem(code) for _ in range(4)))
    assert sum(token is not None for token in tokens) == 1


def test_the_cookie_is_for_the_web_ui_alone_and_for_a_while(stack):
    cookie = redeem(stack, code_of(stack)).headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert name == f"gradbus-{stack.url.rpartition(':')[2]}"
    assert {part.strip().lower() for part in rest.split(";")[1:]} == {"httponly", "samesite=strict", "path=/", "max-age=43200"}


def test_behind_tls_the_cookie_is_secure(stack):
    assert "Secure" in redeem(stack, code_of(stack), **{"X-Forwarded-Proto": "https"}).headers["set-cookie"]


@pytest.mark.parametrize("code", ["", "x" * 129])
def test_what_cannot_be_a_code_is_refused(stack, code):
    assert redeem(stack, code).status_code == 422


def test_before_anybody_is_known_a_body_is_short(stack):
    answer = httpx2.post(f"{stack.url}/sign-in", content=b"x" * 2000, headers={"Origin": stack.url}, timeout=60)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


async def test_a_link_is_too_old_after_its_time(stack, store, monkeypatch):
    monkeypatch.setattr(sessions, "CODE_SECONDS", -1.0)
    assert redeem(stack, await store.new_code(stack.key.partition(".")[0])).status_code == 410


async def test_a_session_is_over_after_its_time(stack, store, monkeypatch):
    monkeypatch.setattr(sessions, "SESSION_SECONDS", -1.0)
    token = await store.redeem(await store.new_code(stack.key.partition(".")[0]))
    name = f"gradbus-{stack.url.rpartition(':')[2]}"
    assert httpx2.get(f"{stack.url}/v1/runs", headers={"Cookie": f"{name}={token}"}, timeout=60).status_code == 401


async def test_a_session_of_a_revoked_key_opens_nothing(stack, store):
    answer = redeem(stack, await store.new_code("revoked"))
    assert httpx2.get(f"{stack.url}/v1/runs", headers=cookie_of(answer), timeout=60).status_code == 401


async def test_what_is_stored_signs_nobody_in(stack, bus):
    code = code_of(stack)
    kept = code_of(stack)
    cookie = redeem(stack, code).headers["set-cookie"].partition("=")[2].partition(";")[0]
    async with (await bus.bucket(Buckets.SESSIONS)).view() as view:
        stored = " ".join([*view.entries, *(value.decode() for value in view.entries.values())])
    assert not [secret for secret in (code, kept, cookie) if secret in stored]


def test_a_session_may_do_what_its_key_may(stack, submitted):
    reader = {**cookie_of(redeem(stack, code_of(stack, stack.reader_key))), "Origin": stack.url}
    assert httpx2.get(f"{stack.url}/v1/caller", headers=reader, timeout=60).json()["scopes"] == ["runs:read"]
    assert httpx2.post(f"{stack.url}/v1/runs/{submitted['id']}/pause", headers=reader, timeout=60).status_code == 403


def test_the_web_ui_may_change_a_run(stack, submitted, signed_in):
    assert httpx2.post(f"{stack.url}/v1/runs/{submitted['id']}/pause", headers=signed_in, timeout=60).json()["desired"] == "paused"


FOREIGN = [
    {"Origin": ""},
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("changed", FOREIGN, ids=str)
def test_another_site_cannot_use_a_session(stack, submitted, signed_in, changed):
    headers = {name: value for name, value in (signed_in | changed).items() if value}
    for path in (f"/v1/runs/{submitted['id']}/cancel", "/sign-out"):
        assert httpx2.post(stack.url + path, headers=headers, timeout=60).status_code == 403
    assert redeem(stack, code_of(stack), **{"Sec-Fetch-Site": "same-origin", **changed}).status_code == 403
    assert httpx2.get(f"{stack.url}/v1/runs/{submitted['id']}", headers=signed_in, timeout=60).json()["desired"] == "running"


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_another_site_cannot_even_read_by_a_session(stack, signed_in, site):
    assert httpx2.get(f"{stack.url}/v1/runs", headers=signed_in | {"Sec-Fetch-Site": site}, timeout=60).status_code == 403


def test_a_session_cannot_prolong_itself(stack, signed_in):
    answer = httpx2.post(f"{stack.url}/v1/sign-ins", headers=signed_in, timeout=60)
    assert (answer.status_code, "gradbus open" in answer.json()["detail"]) == (403, True)


def test_a_wrong_key_is_not_helped_by_a_session(stack, signed_in):
    assert httpx2.get(f"{stack.url}/v1/runs", headers=signed_in | {"Authorization": "Bearer a.b"}, timeout=60).status_code == 401


def test_signing_out_ends_the_session(stack, signed_in):
    assert httpx2.post(f"{stack.url}/sign-out", headers=signed_in, timeout=60).status_code == 204
    assert httpx2.get(f"{stack.url}/v1/runs", headers=signed_in, timeout=60).status_code == 401
