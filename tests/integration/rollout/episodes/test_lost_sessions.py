"""Sessions that their service lost, which is no failure until it happens too often.

An agent's episode begins anew in another attempt; a world's turns are repeated.
"""

import asyncio

import pytest

from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID
from gradbus_rollout.episodes import attempt, player
from tests.integration.rollout.test_agents import Agent, after, conversation, ends
from tests.integration.rollout.test_episodes import World
from tests.integration.rollout.test_episodes import samples as samples_of


async def test_a_lost_session_begins_the_episode_anew_and_repeats_no_turn(play):
    script = [after(None, "cd"), conversation("ef")]
    clean = Agent(script)
    expected = [group.samples for group in await play(clean, agent="pull")]
    lost = set()

    def lose(request):
        episode, _, attempt = request.session.partition("/")
        if request.turn == 1 and attempt == "0" and episode.endswith(".2"):
            lost.add(episode)
            return True
        return False

    agent = Agent(script, lose=lose)
    groups = await play(agent, agent="pull")
    again = {request.episode_id for request in agent.opened if request.attempt == 1}
    assert again == lost
    assert lost
    for of_group, samples in zip(groups, expected, strict=True):
        for sample, before in zip(of_group.samples, samples, strict=True):
            assert sample.episode.attempt == (f"train.4.{sample.sample_id}" in lost)
            assert (sample.token_ids, sample.logprobs, sample.forks) == (before.token_ids, before.logprobs, before.forks)


@pytest.mark.parametrize(("losses", "ends_with"), [(5, {"ENVIRONMENT_DONE", "LENGTH"}), (99, {"FAILED"})])
async def test_lost_sessions_are_no_failed_attempts_until_there_are_too_many(play, monkeypatch, losses, ends_with):
    monkeypatch.setattr(player, "PAUSE_SECONDS", 0.0)
    agent = Agent([after(None, "cd"), conversation("ef")], lose=lambda request: int(request.session.rpartition("/")[2]) < losses)
    groups = await play(agent, agent="pull")
    assert ends(groups) == ends_with
    outcomes = [(sample.episode.attempt, sample.episode.outcome) for group in groups for sample in group.samples]
    if losses > 16:
        assert {attempt for attempt, _ in outcomes} == {15}
        assert all(outcome.reason.startswith("the episode's session was lost 16 times: ") for _, outcome in outcomes)
        assert {outcome.status for _, outcome in outcomes} == {REWARD_STATUS_INVALID}
    else:
        assert {attempt for attempt, _ in outcomes} == {losses}


@pytest.mark.parametrize("first", ["", "gh"])
@pytest.mark.parametrize("losses", [15, 99])
async def test_a_world_whose_turn_ends_its_service_is_asked_so_often_and_no_more(play, monkeypatch, first, losses):
    sleep, pause, pauses, lost = asyncio.sleep, 0.001, [], []

    async def counted(seconds):
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(attempt, "PAUSE_SECONDS", pause)
    monkeypatch.setattr(asyncio, "sleep", counted)

    def lose(world, request):
        if hasattr(request, "assistant") and request.turn == 1 and request.session.startswith("train.4.0.1/") and len(lost) < losses:
            lost.append(request)
            world.known.discard(request.session)

    clean, world = samples_of(await play(World(first=first))), World(first=first, hook=lose)
    groups = await play(world)
    (ended,) = [sample.episode for group in groups for sample in group.samples if sample.sample_id == "0.1"]
    assert ended.attempt == 0
    assert pauses.count(pause) == 15
    if losses == 15:
        assert samples_of(groups) == clean
    else:
        assert len(lost) == 16
        assert ended.outcome.status == REWARD_STATUS_INVALID
        assert ended.outcome.reason.startswith("the episode's session was lost 16 times: ")
