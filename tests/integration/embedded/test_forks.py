"""Services that are forked behave as if each were started by its own command."""

import json
import os
import signal
import sys

import pytest

from gradbus.embedded.forks import client
from gradbus.embedded.forks.client import ForkServer
from gradbus.embedded.processes import Fork, Program, SupervisedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="services are forked on Linux alone")

TELLS = """
import json, os, signal, sys, threading
from gradbus.bus import lease
def end(*_):
    print("drained", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print(json.dumps({
    "environment": dict(os.environ), "arguments": sys.argv, "name": __name__, "session": os.getsid(0) == os.getpid(),
    "phase": lease._phase(), "shared": "fractions" in sys.modules, "parent": os.getppid(),
    "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "files": sorted(os.listdir("/proc/self/fd"))[:-1], "shown": open("/proc/self/cmdline").read(),
}), flush=True)
threading.Event().wait()
"""
MODULES = {
    "tells": TELLS,
    "ends": "import sys; sys.exit('no service')",
    "crashes": "raise RuntimeError('a fault of its own')",
    "ends_the_server": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
    "does_not_end": "import threading; threading.Event().wait()",
    "starts_a_thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
}


@pytest.fixture
def folder(tmp_path):
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


@pytest.fixture
async def new_server(folder):
    """Makes fork servers that import such modules."""
    servers = []

    def made(*modules):
        environment = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "LC_ALL": "C.UTF-8"}
        servers.append(ForkServer(modules, environment, folder / "fork_server.log"))
        return servers[-1]

    yield made
    for server in servers:
        await server.close()


@pytest.fixture
def forked(new_server, folder):
    server = new_server("fractions", "gradbus.bus.lease")

    async def forked(module, **environment):
        with (folder / f"{module}.log").open("ab") as log:
            return await server.fork(module, environment, log.fileno())

    return forked


@pytest.fixture
def told(folder, until):
    """What so many services of the module `tells` have said."""
    log = folder / "tells.log"

    async def told(count=1):
        await until(lambda: log.exists() and log.read_text().count("\n") >= count)
        return [json.loads(line) for line in log.read_text().splitlines()[:count]]

    return told


async def test_a_fork_is_as_if_started_by_its_command(forked, folder, told):
    process = await forked("tells", GIVEN="yes")
    [said] = await told()
    expected = {
        "environment": {"GIVEN": "yes", "GRPC_ENABLE_FORK_SUPPORT": "0"},
        "arguments": [str(folder / "tells.py")],
        "name": "__main__",
        "session": True,
    }
    assert said | expected | {"shared": True, "interrupts": True, "files": ["0", "1", "2"]} == said
    assert said["shown"].rstrip("\0").split("\0") == [sys.executable, "-m", "tells"]
    process.terminate()
    assert await process.wait() == 3
    assert (folder / "tells.log").read_text().splitlines()[-1] == "drained"


async def test_what_a_process_draws_for_itself_is_drawn_by_each_fork(forked, told):
    for _ in range(3):
        await forked("tells")
    assert len({one["phase"] for one in await told(3)}) == 3


@pytest.mark.parametrize(("module", "words"), [("ends", "no service"), ("crashes", "RuntimeError: a fault of its own")])
async def test_an_end_with_an_error_is_in_the_log_and_in_the_status(forked, folder, module, words):
    process = await forked(module)
    assert await process.wait() == 1
    assert words in (folder / f"{module}.log").read_text()


@pytest.mark.parametrize("module", ["missing", "starts_a_thread", "ends_the_server", "does_not_end"])
async def test_without_its_modules_the_command_runs_instead(new_server, folder, until, monkeypatch, module):
    monkeypatch.setattr(client, "_REPLY_SECONDS", 5.0)
    server = new_server(module)
    command = [sys.executable, str(folder / "ends.py")]
    program = Program(command, {}, folder / "program.log", fork=Fork(server, "tells"))
    process = SupervisedProcess("service", lambda: program, lambda: None)
    process.start()
    await until(lambda: process.restarts)
    await process.stop(5)
    assert "no service" in (folder / "program.log").read_text()


async def test_a_server_that_cannot_import_says_why_in_its_log(new_server, folder):
    with pytest.raises(OSError, match="the fork server ended"), (folder / "log").open("ab") as log:
        await new_server("starts_a_thread").fork("tells", {}, log.fileno())
    assert "starts_a_thread have started 1 threads, which a fork would not copy" in (folder / "fork_server.log").read_text()


async def test_services_end_with_the_fork_server_and_the_next_starts_another(forked, told, until, is_alive):
    process = await forked("tells")
    [first] = await told()
    os.kill(first["parent"], signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: not is_alive(process.pid))
    assert is_alive((await forked("tells")).pid)
    assert (await told(2))[1]["parent"] != first["parent"]


async def test_a_supervised_fork_is_started_again_and_stopped(new_server, folder, told, until):
    program = Program(["false"], {}, folder / "tells.log", fork=Fork(new_server(), "tells"))
    process = SupervisedProcess("service", lambda: program, lambda: None)
    process.start()
    await told()
    await until(lambda: process.pid)
    await process.kill()
    await told(2)
    assert (process.restarts, process.ended) == (1, "killed by SIGKILL")
    await process.stop(10)
    assert (folder / "tells.log").read_text().splitlines()[-1] == "drained"
