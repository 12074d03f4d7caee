"""Probes of the machine itself, measured in the same minutes; results have no meaning without them."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradbus_load.outcome import Finding

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """Durations of the probes."""

    copy_mib: int = 256
    round_trips: int = 5000
    sent_mib: int = 512
    syncs: int = 400
    loops: int = 5_000_000


def probe(folder: Path, effort: Effort | None = None) -> list[Finding]:
    """Runs all probes; files are written below `folder`."""
    effort = effort or Effort()
    trip, sent = _loopback(effort)
    syncs = sorted(_fdatasync(folder, effort.syncs))
    return [
        Finding("memcpy, one core", _memcpy(effort.copy_mib), "GB/s"),
        Finding("loopback round trip, 1 byte", 1e6 * trip, "µs"),
        Finding("loopback throughput", sent, "GB/s"),
        Finding("fdatasync of 4 KiB p50", 1e3 * syncs[len(syncs) // 2], "ms"),
        Finding("fdatasync of 4 KiB p99", 1e3 * syncs[int(0.99 * len(syncs))], "ms"),
        Finding("Python loop", _python(effort.loops), "million turns/s"),
    ]


def machine() -> dict[str, str]:
    """The machine."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "system": platform.system(),
        "python": platform.python_version(),
    }


def load_average() -> str:
    """Load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _memcpy(mib: int) -> float:
    source, target = bytearray(mib * _MIB), bytearray(mib * _MIB)
    view = memoryview(target)

    def copy() -> None:
        view[:] = source

    copy()  # faults the pages in
    return mib * _MIB / _best(copy) / 1e9


def _python(loops: int) -> float:
    def turn() -> None:
        total = 0
        for number in range(loops):
            total += number

    return loops / _best(turn) / 1e6


def _best(work: Callable[[], None], rounds: int = 3) -> float:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def _loopback(effort: Effort) -> tuple[float, float]:
    """(seconds of a round trip, GB/s in one direction) of two threads over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            for end in (client, peer):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            echo = threading.Thread(target=_echo, args=(peer, effort))
            echo.start()
            began = time.perf_counter()
            for _ in range(effort.round_trips):
                client.sendall(b"x")
                client.recv(1)
            trip = (time.perf_counter() - began) / effort.round_trips
            block, began = bytes(_MIB), time.perf_counter()
            for _ in range(effort.sent_mib):
                client.sendall(block)
            client.recv(1)
            sent = effort.sent_mib * _MIB / (time.perf_counter() - began) / 1e9
            echo.join()
    return trip, sent


def _echo(peer: socket.socket, effort: Effort) -> None:
    for _ in range(effort.round_trips):
        peer.sendall(peer.recv(1))
    left, block = effort.sent_mib * _MIB, bytearray(_MIB)
    while left:
        left -= peer.recv_into(block, min(left, _MIB))
    peer.sendall(b"x")


def _fdatasync(folder: Path, syncs: int) -> list[float]:
    found = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(syncs):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - began)
    return found
