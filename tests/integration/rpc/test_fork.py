"""A process that serves and calls by gRPC starts other programs."""

import subprocess
import sys

import pytest

FORKS = """
import asyncio, os
import gradbus
import grpc

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await grpc.aio.insecure_channel(f"127.0.0.1:{port}").channel_ready()
    parent = len(os.listdir("/proc/self/task"))
    if not (child := os.fork()):
        os._exit(0 if parent > len(os.listdir("/proc/self/task")) == 1 else 1)
    print(os.waitpid(child, 0)[1], flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_fork_returns_at_once_and_starts_no_thread_of_grpc():
    found = subprocess.run([sys.executable, "-c", FORKS], check=False, capture_output=True, text=True, timeout=60)
    assert found.stdout == "0\n", found.stderr
