"""NATS and the buffer as a deployment configures them: mutual TLS and nothing else."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from gradbus.access import buffer_configuration, buffer_users, nats_configuration
from gradbus.buffer import BufferSettings, load_functions, open_buffer
from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.errors import SettingsError
from gradbus.tls import read_identity

PASSWORD = "of-the-test"


@pytest.fixture
def start(tmp_path):
    processes = []

    def begin(command, port):
        with (tmp_path / f"{port}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert processes[-1].poll() is None, (tmp_path / f"{port}.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    yield begin
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def nats(start, tmp_path, free_port):
    """Starts NATS with the certificate in a folder, or without TLS; returns `host:port`."""

    def begin(tls_dir=""):
        port, file = free_port(), tmp_path / "nats.conf"
        file.write_text(nats_configuration(lambda role: PASSWORD, f"127.0.0.1:{port}", f"{tmp_path}/nats", "", str(tls_dir)))
        binary = shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which("nats-server")
        start([binary, "--config", str(file)], port)
        return f"127.0.0.1:{port}"

    return begin


async def connect(url, identity=None, seconds=60.0):
    bus = await Bus.connect(BusSettings(url, "gateway", PASSWORD, identity=identity), "test", seconds)
    try:
        await (await bus.bucket(Buckets.RUNS)).get("nothing")
    finally:
        await bus.close()


async def test_nats_serves_a_client_with_a_certificate_of_the_same_authority(nats, issue):
    await connect(f"tls://{nats(issue('nats', '127.0.0.1'))}", read_identity(issue("gateway")))


async def test_nats_refuses_clients_without_tls_and_of_another_authority(nats, issue):
    address, foreign = nats(issue("nats", "127.0.0.1")), read_identity(issue("gateway", of="another"))
    with pytest.raises(SettingsError, match="did not answer"):
        await connect(f"nats://{address}", seconds=5)
    with pytest.raises(SettingsError, match=r"did not answer in 5 s .*certificate verify failed"):
        await connect(f"tls://{address}", foreign, seconds=5)


@pytest.fixture
async def overheard():
    """Forwards connections to a server; returns an address for clients, and a list of all that they send."""
    servers = []

    async def begin(address):
        host, port = address.split(":")
        sent = []

        async def forward(reader, writer, seen):
            while data := await reader.read(1 << 16):
                seen.append(data)
                writer.write(data)
            writer.close()

        async def serve(reader, writer):
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
            await asyncio.gather(forward(reader, inner_writer, sent), forward(inner_reader, writer, []), return_exceptions=True)

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}", sent

    yield begin
    for server in servers:
        server.close()


async def test_a_nats_without_tls_gets_no_password(nats, issue, overheard):
    address, sent = await overheard(nats())
    with pytest.raises(SettingsError, match=r"did not answer in 5 s"):
        await connect(f"tls://{address}", read_identity(issue("gateway")), seconds=5)
    assert sent, "the client has tried"
    assert PASSWORD.encode() not in b"".join(sent)
    await connect(f"nats://{address}")
    assert PASSWORD.encode() in b"".join(sent), "it would have been heard"


async def test_a_nats_that_shows_another_name_gets_no_password(nats, issue):
    with pytest.raises(SettingsError, match=r"did not answer in 5 s .*(IP address mismatch|not valid for)"):
        await connect(f"tls://{nats(issue('buffer'))}", read_identity(issue("gateway")), seconds=5)


def speaks_tls(binary):
    return binary is not None and b"tls-auth-clients" in Path(binary).read_bytes()


REDIS = next((found for found in map(shutil.which, ("valkey-server", "redis-server")) if speaks_tls(found)), None)


@pytest.fixture
def buffer_address(start, tmp_path, free_port, issue):
    if REDIS is None:
        pytest.skip("no Redis or Valkey with TLS on the PATH; Debian has one in the package redis-server")
    port, users, file = free_port(), tmp_path / "users.acl", tmp_path / "buffer.conf"
    users.write_text(buffer_users(lambda role: PASSWORD).replace("+client|setinfo", ""))  # a Redis before 7.2 does not know it
    file.write_text(buffer_configuration(f"127.0.0.1:{port}", str(tmp_path), str(users), 1 << 26, str(issue("buffer", "127.0.0.1"))))
    start([REDIS, str(file)], port)
    return f"127.0.0.1:{port}"


async def load(url, identity):
    client = open_buffer(BufferSettings(url, "supervisor", PASSWORD, identity))
    try:
        await load_functions(client)
    finally:
        await client.aclose()


async def test_the_buffer_serves_a_client_with_a_certificate_of_the_same_authority(buffer_address, issue):
    await load(f"rediss://{buffer_address}/0", read_identity(issue("supervisor")))


async def test_the_buffer_refuses_clients_without_a_certificate_and_without_tls(buffer_address, issue):
    for url, identity in ((f"redis://{buffer_address}/0", None), (f"rediss://{buffer_address}/0", None)):
        with pytest.raises(RedisConnectionError):
            await load(url, identity)
    trusting = ssl.create_default_context(cafile=issue("supervisor") / "ca.crt")
    trusting.check_hostname = False
    # The server refuses with its first answer.
    with pytest.raises(ssl.SSLError), socket.create_connection(buffer_address.split(":"), 10) as raw, trusting.wrap_socket(raw) as sealed:
        sealed.recv(100)


async def test_a_buffer_of_another_authority_gets_no_password(buffer_address, issue):
    with pytest.raises(RedisConnectionError, match="certificate verify failed"):
        await load(f"rediss://{buffer_address}/0", read_identity(issue("supervisor", of="another")))
