"""The service as a whole, in this process."""

import asyncio
import random
import statistics

import pytest

from gradbus.access.api_keys import write_api_keys
from gradbus.process import Process
from gradbus.rpc import LiveCallers, token_hash
from gradbus_agent.episodes.episode import AgentEpisode
from gradbus_agent.episodes.registry import Registry
from gradbus_agent.http import server as module
from gradbus_agent.push import Agents
from gradbus_agent.service import AgentService, Reach, Workers, serve
from gradbus_agent.settings import AgentSettings
from gradbus_agent.spawn import AgentCommands
from gradbus_agent.withdrawals import Withdrawals
from tests.unit.agent.test_registry import opening


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


@pytest.mark.parametrize(
    ("waiting", "deadline", "a_second"), [(300, 90.0, 20.0), (1500, 90.0, 100.0), (5000, 600.0, 100.0), (5000, 90.0, 5000 / 44.625)]
)
async def test_at_most_a_hundred_episodes_are_offered_a_second_if_the_deadline_allows(monkeypatch, waiting, deadline, a_second):
    monkeypatch.setattr("gradbus_agent.service.random", random.Random(5))
    registry, live, waited = Registry(), LiveCallers(3.0), []

    async def unclaimed(_episode, seconds):
        waited.append(seconds)
        return False

    monkeypatch.setattr(AgentEpisode, "until_claimed", unclaimed)
    reach = Reach(Agents({}), AgentCommands({}, 1, None))
    service = AgentService(registry, reach, Workers(live, Withdrawals(live)), "")
    episodes = [registry.open(opening(n), "w", resume=False) for n in range(waiting)]
    for episode in episodes:
        assert (await service._opened(episode, deadline - 0.5)).is_away
    assert waiting / statistics.fmean(waited) == pytest.approx(a_second, rel=0.03)
    assert min(waited) < 0.6 * max(waited), "what came at once does not come at once again"
