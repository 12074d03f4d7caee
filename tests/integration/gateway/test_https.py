"""The gateway with a certificate: HTTPS alone, trusted by the authority that its clients name."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest

from gradbus.access.api_keys import SCOPES, new_api_key, write_api_keys
from gradbus.client import Client, RetryPolicy, document
from gradbus.client.answers import trusting
from gradbus.errors import SettingsError, StackError
from gradbus.process import Process
from gradbus_gateway.service import serve
from gradbus_gateway.settings import GatewaySettings

NAME = "gradbus.test"
QUICK = RetryPolicy(seconds=0.1)


@pytest.fixture
def certificate(issue):
    return issue("localhost", "127.0.0.1", NAME)


@pytest.fixture
def api_key(tmp_path):
    key, record = new_api_key("everything", SCOPES)
    write_api_keys(tmp_path / "keys.json", [record])
    return key


@pytest.fixture
def settings(nats_url, buffer_url, tmp_path, free_port, api_key, certificate):
    return GatewaySettings(
        listen=f"127.0.0.1:{free_port()}",
        nats_url=nats_url,
        buffer_url=buffer_url,
        objects_url=f"file://{tmp_path}/objects",
        api_keys_file=tmp_path / "keys.json",
        served_hosts=(NAME,),
        https_dir=certificate,
    )


@asynccontextmanager
async def served(settings):
    process = Process("gateway")
    task = asyncio.create_task(serve(settings, process))
    deadline = time.monotonic() + 60
    while not process.ready:
        assert not task.done(), task.result()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    try:
        yield
    finally:
        process.stopping.set()
        await task


@pytest.fixture
async def address(settings):
    async with served(settings):
        yield settings.listen


async def listed(url, key, authority):
    def ask():
        with Client(url, key, QUICK, authority) as client:
            return document(client.runs_page())

    return await asyncio.to_thread(ask)


async def test_a_client_that_trusts_the_authority_is_answered(address, api_key, certificate):
    assert (await listed(f"https://{address}", api_key, certificate / "ca.crt"))["object"] == "list"


async def test_a_client_is_told_to_name_the_authority(address, api_key):
    with pytest.raises(SettingsError, match=r"is not trusted .*; set GRADBUS_CA to the file of its authority's certificate"):
        await listed(f"https://{address}", api_key, None)


async def test_a_gateway_of_another_authority_gets_no_key(address, api_key, issue):
    with pytest.raises(SettingsError, match="is not trusted"):
        await listed(f"https://{address}", api_key, issue("localhost", of="another") / "ca.crt")


async def test_a_gateway_of_another_name_gets_no_key(settings, api_key, issue):
    named = settings.model_copy(update={"https_dir": issue("gateway.example")})
    async with served(named):
        with pytest.raises(SettingsError, match=r"is not trusted .*127\.0\.0\.1"):
            await listed(f"https://{named.listen}", api_key, named.https_dir / "ca.crt")


async def test_a_handshake_has_the_deadline_of_a_request(settings, api_key, certificate, monkeypatch):
    monkeypatch.setenv("GRADBUS_CONNECTIONS_HEAD_SECONDS", "4")
    async with served(settings):
        host, _, port = settings.listen.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        assert (await listed(f"https://{settings.listen}", api_key, certificate / "ca.crt"))["object"] == "list"


async def test_clients_that_never_shake_hands_make_room_for_others(settings, api_key, certificate, monkeypatch):
    monkeypatch.setenv("GRADBUS_CONNECTIONS_TOTAL", "20")
    monkeypatch.setenv("GRADBUS_CONNECTIONS_HEAD_SECONDS", "0")
    async with served(settings):
        host, _, port = settings.listen.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        async with asyncio.timeout(30):
            assert [await reader.read() for reader, _ in idle[:80]] == [b""] * 80
        assert (await listed(f"https://{settings.listen}", api_key, certificate / "ca.crt"))["object"] == "list"
        for _, writer in idle:
            writer.close()


async def test_there_is_no_http_beside_it(address, api_key):
    with pytest.raises(StackError, match="does not answer"):
        await listed(f"http://{address}", api_key, None)


async def test_https_to_a_gateway_without_it_is_told_apart_from_an_absent_one(settings, api_key, certificate):
    plain = settings.model_copy(update={"https_dir": None})
    async with served(plain):
        with pytest.raises(SettingsError, match="does not speak HTTPS; write http://"):
            await listed(f"https://{plain.listen}", api_key, certificate / "ca.crt")


def test_an_authority_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "ca.crt").write_text("no PEM")
    for path in (tmp_path / "ca.crt", tmp_path / "missing"):
        with pytest.raises(SettingsError, match=f"cannot read certificates from {path} .*set GRADBUS_CA"):
            Client("https://localhost", "key", authority=path)


def test_the_command_reads_the_authority_from_the_environment(certificate, monkeypatch):
    monkeypatch.setenv("GRADBUS_URL", "https://localhost:1")
    monkeypatch.setenv("GRADBUS_KEY", "id.secret")
    monkeypatch.setenv("GRADBUS_CA", str(certificate / "missing"))
    with pytest.raises(SettingsError, match="missing"):
        Client.discover()
    monkeypatch.setenv("GRADBUS_CA", str(certificate / "ca.crt"))
    Client.discover().close()


@pytest.fixture
async def browser(address, certificate):
    async with httpx2.AsyncClient(
        base_url=f"https://{address}", verify=trusting(f"https://{address}", certificate / "ca.crt"), trust_env=False, timeout=60
    ) as client:
        yield client


async def test_the_session_cookie_is_for_https_alone(browser, api_key):
    link = (await browser.post("/v1/sign-ins", headers={"Authorization": f"Bearer {api_key}"})).json()["path"]
    body = json.dumps({"code": link.partition("#")[2]})
    answer = await browser.post("/sign-in", content=body, headers={"Origin": str(browser.base_url), "Content-Type": "application/json"})
    assert answer.status_code == 204, answer.text
    assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))


@pytest.mark.parametrize(("host", "told"), [(NAME, True), (f"{NAME}:8080", True), ("localhost", False), ("127.0.0.1:8080", False)])
async def test_browsers_are_told_to_stay_with_https_under_the_gateways_own_names(browser, host, told):
    for path in ("/", "/v1/runs"):
        answer = await browser.get(path, headers={"Host": host})
        assert ("strict-transport-security" in answer.headers) == told


async def test_an_expired_certificate_ends_the_start(settings, issue):
    expired = settings.model_copy(update={"https_dir": issue("localhost", lasts=timedelta(minutes=-1))})
    with pytest.raises(SettingsError, match="certificate has expired"):
        await serve(expired, Process("gateway"))
