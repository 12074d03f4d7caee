"""Offers, claims and keys; what is forgotten, and when."""

import asyncio
import pickle
import time
from types import SimpleNamespace

import pytest

from gradbus.spec.sections import EnvironmentSpec
from gradbus.v1.environment_service_pb2 import StepRequest
from gradbus_agent.contract import ChatMessage, ChatRequest, RefusalError, Reply, Verdict
from gradbus_agent.episodes import episode as episode_module
from gradbus_agent.episodes import lease
from gradbus_agent.episodes import registry as module
from gradbus_agent.episodes.asks import Mark
from gradbus_agent.episodes.registry import Registry
from gradbus_agent.episodes.turns import Opening
from gradbus_agent.matching import Question

REQUEST = ChatRequest((ChatMessage("user", "a"),))


def opening(n=0, attempt=0, player="p", item="{}", run="run"):
    return Opening(run, f"train.0.0.{n}", attempt, player, item, EnvironmentSpec(agent="pull"))


@pytest.fixture
async def registry():
    return Registry()


async def claimed(registry, run="run", capacity=8):
    return await registry.claim(run, capacity, 0.01)


def silent(episode, seconds):
    episode.heard = time.monotonic() - seconds


async def drawn_for(episode, request=REQUEST):
    """A request that the rollout worker draws for."""
    ask = episode.submit(Question.of(request), Mark(b"a"))
    assert (await episode.first(1.0)).status == "ok"
    return ask


@pytest.fixture
async def left(monkeypatch):
    """An episode, a request that its worker draws for and whose client has left, and the episodes that were abandoned."""
    monkeypatch.setattr(episode_module, "ABANDONED_SECONDS", 0.02)
    abandoned = []
    registry = Registry(abandoned.append)
    registry.open(opening())
    ((episode, _),) = await claimed(registry)
    ask = await drawn_for(episode)
    episode.leave(ask, is_delivered=False)
    return episode, ask, abandoned


async def test_an_agent_that_comes_back_and_leaves_again_has_the_same_while_anew(left):
    episode, ask, _ = left
    await asyncio.sleep(0.1)
    assert episode.withdrawn_draw == 0
    assert episode.submit(Question.of(REQUEST), Mark(b"a")) is ask
    episode.leave(ask, is_delivered=False)
    assert episode.withdrawn_draw is None
    await asyncio.sleep(0.1)
    assert episode.withdrawn_draw == 0


async def test_a_draw_is_withdrawn_a_while_after_nobody_waits_for_it_and_not_for_ever_again(left):
    episode, ask, abandoned = left
    assert episode.submit(Question.of(REQUEST), Mark(b"a")) is ask, "its client comes back at once"
    await asyncio.sleep(0.1)
    assert abandoned == []
    most = episode_module.WITHDRAWN_PER_TURN * episode.opening.section.max_turns
    for withdrawn in range(most):
        episode.leave(ask, is_delivered=False)
        await asyncio.sleep(0.05)
        assert abandoned == [episode] * (withdrawn + 1)
        assert episode.withdrawn_draw == withdrawn
        step = StepRequest(turn=0, withdrawn=withdrawn, assistant={"finish": "withdrawn"})
        assert (await episode.step(step, 0.01)).is_away, "nobody asks"
        assert (await episode.step(StepRequest(turn=0, assistant={"finish": "withdrawn"}, withdrawn=withdrawn + 2), 0.01)).status == "error"
        assert episode.withdrawn_draw is None, "it has ended"
        ask = episode.submit(Question.of(REQUEST), Mark(b"a"))
        assert (await episode.step(step, 1.0)).conversation == REQUEST, "the same step again gets what is asked now"
    episode.leave(ask, is_delivered=False)
    await asyncio.sleep(0.05)
    assert (len(abandoned), episode.withdrawn_draw) == (most, None), "from now on turns are drawn to their ends, and count"
    assert (episode.counters()["withdrawn"], episode.counters()["turns"]) == (most, 0)


async def test_a_draw_that_nobody_waits_for_is_withdrawn_though_the_episode_is_over(left):
    episode, _, abandoned = left
    episode.end(Verdict("ok", reward=1.0))
    await asyncio.sleep(0.1)
    assert abandoned == [episode], "its turn would be trained, and nobody saw it"


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


async def test_a_worker_that_owes_no_turn_and_does_not_ask_is_gone(registry):
    offered, played = registry.open(opening(0)), registry.open(opening(1))
    registry.give(played)
    played.submit(Question.of(REQUEST), Mark(b"a"))
    async with offered.lock:
        silent(offered, 100)
        silent(played, 100)
        registry.close_idle(900)
        assert (offered.over, played.over) == ("", "its rollout worker is gone"), "one waits for an agent in a call"
    registry.close_idle(900)
    assert offered.over == "its rollout worker is gone"
    assert registry._runs == {}


async def test_a_worker_that_draws_is_not_given_up_for_another_that_plays_the_same_episode(registry):
    first, second = registry.open(opening()), registry.open(opening(player="q"))
    for episode in (first, second):
        registry.give(episode)
        await drawn_for(episode)
        silent(episode, 800)
    registry.close_idle(900)
    assert (first.over, second.over) == ("", "")
    silent(first, 901)
    registry.close_idle(900)
    assert (first.over, second.over) == ("its rollout worker is gone", "")


async def test_an_agent_that_begins_again_for_ever_loses_its_episode(registry, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: now[0]))
    episode = registry.open(opening())
    registry.give(episode)
    most = episode._lease.beating_seconds
    while now[0] < most:
        now[0] += most / 20
        assert episode.restart() == {"answers": 0}
    assert f"asked nothing new for {most:g} s" in (await episode.first(1.0)).reason
    with pytest.raises(RefusalError, match="is over"):
        episode.restart()


async def test_offers_of_workers_that_are_gone_are_not_claimed(registry):
    gone, waits = registry.open(opening(0)), registry.open(opening(1))
    silent(gone, 6)
    async with waits.lock:
        silent(waits, 600)
        assert [episode for episode, _ in await claimed(registry)] == [waits]
    claiming = asyncio.create_task(registry.claim("run", 1, 5))
    await asyncio.sleep(0.01)
    assert not claiming.done()
    assert registry.open(opening(0)) is gone, "its worker asks again"
    assert [episode for episode, _ in await claiming] == [gone]


async def test_a_request_that_is_drawn_for_is_refused_when_its_worker_is_gone_also_after_the_end(registry):
    episode = registry.open(opening())
    registry.give(episode)
    ask = await drawn_for(episode)
    episode.end(Verdict("ok", reward=1.0))
    assert not ask.answer.done(), "the worker may answer it yet"
    registry.close(episode, "its rollout worker closed it")
    assert (ask.answer.exception().status, ask.answer.exception().code) == (410, "episode_over")


async def test_played_and_waiting_episodes_are_counted(registry):
    first = registry.open(opening(0))
    registry.open(opening(1))
    assert (registry.crowd("run"), registry.crowd("other")) == ((0, 2), (0, 0))
    await claimed(registry, capacity=1)
    assert registry.crowd("run") == (1, 1)
    registry.take_back(first)
    assert registry.crowd("run") == (0, 2)
    await claimed(registry, capacity=1)
    first.end(Verdict("ok", reward=1.0))
    assert registry.crowd("run") == (0, 1)


async def test_an_ended_episode_keeps_no_conversation_and_answers_a_repeated_end(registry):
    held = "x" * 100_000
    episode = registry.open(opening(item=f'{{"a": "{held}"}}'))
    key = registry.give(episode)
    await drawn_for(episode, ChatRequest((ChatMessage("user", held),)))
    episode.end(Verdict("ok", reward=1.0))
    registry.close(episode, "its rollout worker closed it")
    kept = registry.of_key(key)
    kept.on_over = None  # leads to the registry
    assert len(pickle.dumps([getattr(kept, name) for name in ("opening", "_asks", "_histories", "_progress", "_opened", "_step")])) < 10_000
    kept.end(Verdict("ok", reward=1.0))
    with pytest.raises(RefusalError, match="its agent ended the episode"):
        kept.end(Verdict("ok", reward=0.0))
    with pytest.raises(RefusalError, match="claim another one"):
        kept.submit(Question.of(REQUEST), Mark(b"a"))


async def test_episodes_are_claimed_in_the_order_in_which_they_were_offered(registry):
    for n in range(300):
        registry.open(opening(n))
    for n in range(0, 300, 7):
        registry.close(registry.open(opening(n)), "over")
    kept = [f"train.0.0.{n}" for n in range(300) if n % 7]
    first = await claimed(registry, capacity=100)
    registry.take_back(first[3][0])
    rest = [episode for episode, _ in [*await claimed(registry, capacity=5), *await claimed(registry, capacity=1000)]]
    assert [episode.opening.episode_id for episode, _ in first] == kept[:100]
    assert [episode.opening.episode_id for episode in rest] == [kept[3], *kept[100:]]


async def test_a_long_queue_is_read_once_however_many_episodes_of_lost_workers_wait(registry, monkeypatch):
    """Offers whose workers are gone too, and which are all read to know that."""
    for n in range(60):
        episode = registry.open(Opening("run", f"train.0.0.{n}", 0, "", "{}", EnvironmentSpec(agent="pull")), "worker")
        if n < 30:
            registry.give(episode)
            registry.lose({"worker"})
        silent(episode, 10)
    read = []
    is_heard = module.AgentEpisode.is_heard
    monkeypatch.setattr(module.AgentEpisode, "is_heard", lambda episode, seconds: read.append(episode) or is_heard(episode, seconds))
    registry.close_idle(900)
    assert len(read) <= 2 * 60


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


async def test_what_agents_play_waits_for_another_worker_and_all_else_of_one_that_is_gone_is_closed(registry):
    recorded, unrecorded = registry.open(opening(0, player=""), "a"), registry.open(opening(1), "a")
    offered, other = registry.open(opening(2, player=""), "a"), registry.open(opening(3), "b")
    (_, key), _ = await claimed(registry, capacity=2)
    registry.lose({"a"})
    gone = "its rollout worker is gone"
    assert [one.over for one in (recorded, unrecorded, offered, other)] == ["", gone, gone, ""]
    silent(recorded, 1000)
    registry.close_idle(900)
    assert registry.open(opening(0, player=""), "c", resume=True) is recorded
    assert registry.of_key(key) is recorded
    registry.lose({"a"})
    assert recorded.over == "", "it is c's now"


@pytest.mark.parametrize(("lost", "heard", "ends"), [(50, 0, False), (70, 0, True), (70, 10, False), (910, 10, True)])
async def test_an_agent_waits_for_the_next_worker_and_not_long_if_others_need_it(registry, lost, heard, ends):
    played = registry.open(opening(0, player=""), "a")
    await claimed(registry, capacity=1)
    registry.lose({"a"})
    silent(registry.open(opening(1), "b"), heard)
    played.lost -= lost
    registry.close_idle(900)
    assert bool(played.over) == ends
    assert (registry.open(opening(0, player=""), "c", resume=True) is played) != ends


async def test_a_worker_that_calls_again_is_not_gone(registry):
    played = registry.open(opening(0, player=""), "a")
    await claimed(registry, capacity=1)
    registry.lose({"a"})
    played.lost -= 1000
    assert registry.of_session("run", played.session) is played
    registry.close_idle(900)
    assert played.over == ""
