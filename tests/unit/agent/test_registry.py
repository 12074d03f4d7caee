"""Offers, claims and keys; what is forgotten, and when."""

import asyncio
import time

import pytest

from gradbus.spec.sections import EnvironmentSpec
from gradbus_agent.contract import RefusalError, Reply
from gradbus_agent.episodes import registry as module
from gradbus_agent.episodes.registry import Registry
from gradbus_agent.episodes.turns import Opening


def opening(n=0, attempt=0, player="p", item="{}", run="run"):
    return Opening(run, f"train.0.0.{n}", attempt, player, item, EnvironmentSpec(agent="pull"))


@pytest.fixture
async def registry():
    return Registry()


async def claimed(registry, run="run", capacity=8):
    return await registry.claim(run, capacity, 0.01)


def silent(episode, seconds):
    episode.heard = time.monotonic() - seconds


async def test_an_equal_opening_finds_the_same_offer_and_another_item_none(registry):
    first = registry.open(opening())
    assert registry.open(opening()) is first
    assert "opened with another item" in registry.open(opening(item='{"a": 1}')).reason
    assert registry.open(opening(player="q")) is not first
    assert len(await claimed(registry)) == 2


async def test_keys_are_of_one_attempt_and_end_with_it(registry):
    first = registry.open(opening())
    ((episode, key),) = await claimed(registry)
    assert registry.of_key(key) is episode is first
    newer = registry.open(opening(attempt=1))
    assert registry.of_key(key).over == "its episode is played in another attempt"
    assert not newer.is_claimed
    assert isinstance(registry.open(opening()), Reply)
    with pytest.raises(RefusalError, match="the key of no episode"):
        registry.of_key("wrong")
    with pytest.raises(RefusalError):
        registry.of_key("")


async def test_an_episode_that_its_agent_did_not_get_is_the_next_one_claimed(registry):
    registry.open(opening(0))
    registry.open(opening(1))
    ((episode, key),) = await claimed(registry, capacity=1)
    registry.take_back(episode)
    with pytest.raises(RefusalError):
        registry.of_key(key)
    assert [one.opening.episode_id for one, _ in await claimed(registry)] == ["train.0.0.0", "train.0.0.1"]


async def test_what_is_closed_is_not_claimed(registry):
    episode = registry.open(opening())
    registry.close(episode, "over")
    registry.close(episode, "over")
    assert await claimed(registry) == []
    assert registry.of_session("run", episode.session) is None


async def test_a_session_is_that_of_its_run(registry):
    episode = registry.open(opening())
    assert registry.of_session("run", episode.session) is episode
    assert registry.of_session("other", episode.session) is None


async def test_silent_workers_are_given_up_later_if_an_agent_plays_and_sooner_if_another_worker_does(registry):
    offered, played = registry.open(opening(0)), registry.open(opening(1))
    registry.give(played)
    for episode in (offered, played):
        silent(episode, 100)
    registry.close_idle(900)
    assert (offered.over, played.over) == ("its rollout worker is gone", "")
    elsewhere = registry.open(opening(1, player="q"))
    registry.close_idle(900)
    assert (played.over, elsewhere.over) == ("its rollout worker is gone", "")
    registry.give(elsewhere)
    silent(elsewhere, 1000)
    async with elsewhere.lock:
        registry.close_idle(900)
        assert elsewhere.over == "", "its worker waits for an answer"
    registry.close_idle(900)
    assert elsewhere.over
    assert registry._runs == {}


async def test_a_run_has_so_many_episodes(registry, monkeypatch):
    monkeypatch.setattr(module, "MAX_EPISODES", 2)
    episodes = [registry.open(opening(n)) for n in range(2)]
    assert registry.open(opening(2)).is_away
    registry.close(episodes[0], "over")
    assert not isinstance(registry.open(opening(2)), Reply)
    assert not isinstance(registry.open(opening(run="other")), Reply)


async def test_so_many_claims_of_a_run_wait(registry, monkeypatch):
    monkeypatch.setattr(module, "MAX_CLAIMS", 1)
    waiting = asyncio.create_task(registry.claim("run", 1, 5))
    await asyncio.sleep(0)
    with pytest.raises(RefusalError) as refused:
        await claimed(registry)
    assert (refused.value.status, refused.value.retry_after) == (429, 5)
    assert await claimed(registry, run="other") == []
    registry.open(opening())
    assert len(await waiting) == 1
    assert await claimed(registry) == []


async def test_the_addresses_of_agents_are_those_of_open_episodes(registry):
    posted = Opening("run", "train.0.0.0", 0, "p", "{}", EnvironmentSpec(agent="http://agent/play"))
    episode = registry.open(posted)
    assert registry.addresses == {"http://agent/play"}
    registry.close(episode, "over")
    assert registry.addresses == set()


async def test_keys_of_ended_episodes_are_known_for_a_while(registry, monkeypatch):
    monkeypatch.setattr(module, "_MAX_ENDED", 2)
    keys = [registry.give(registry.open(opening(n))) for n in range(3)]
    registry.close_all()
    with pytest.raises(RefusalError):
        registry.of_key(keys[0])
    assert [registry.of_key(key).over for key in keys[1:]] == ["the agent service stops"] * 2
