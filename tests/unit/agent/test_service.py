"""The service as a whole, in this process."""

import asyncio

import pytest

from gradbus.access.api_keys import write_api_keys
from gradbus.process import Process
from gradbus.rpc import token_hash
from gradbus_agent.http import server as module
from gradbus_agent.service import serve
from gradbus_agent.settings import AgentSettings


@pytest.fixture
def settings(tmp_path):
    write_api_keys(tmp_path / "keys.json", [])
    return AgentSettings(listen="127.0.0.1:0", api_keys_file=tmp_path / "keys.json", rpc_callers={"rollout": token_hash("of-the-test")})


async def _ends(_server):
    await asyncio.sleep(0.2)


async def _fails(_server):
    raise OSError("broken")


@pytest.mark.parametrize(("main_loop", "error"), [(_ends, RuntimeError), (_fails, OSError)])
async def test_the_process_ends_with_its_http_server(settings, monkeypatch, main_loop, error):
    monkeypatch.setattr(module._Server, "main_loop", main_loop)
    with pytest.raises(error):
        await asyncio.wait_for(serve(settings, Process("agent")), 10)


async def test_it_serves_until_it_is_asked_to_stop(settings):
    process = Process("agent")
    serving = asyncio.create_task(serve(settings, process))
    await asyncio.wait_for(process.has_been_ready.wait(), 10)
    await asyncio.sleep(0.2)
    assert not serving.done()
    process.stopping.set()
    await asyncio.wait_for(serving, 10)
