"""A run that an agent plays: the agent leaves episodes, the agent service and workers die, and the run goes on without a reward of 0."""

import asyncio

import pytest
from guessing_agent import GuessingAgent, agent_spec, make_game, run_id_of
from ledger import check, read_ledger
from smoke import train

from gradbus.client import Client
from gradbus.formats.tokens import unpack_ids
from gradbus.v1.group_pb2 import Group
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

STEPS = 12
KILLS = ("agent", "rollout-0", "agent")


@pytest.mark.slow  # the next one has deaths, and the tests of the SDKs cut connections
async def test_a_run_ends_whoever_leaves_or_dies(stack_of, tmp_path_factory):
    game = make_game(tmp_path_factory.mktemp("game"))
    async with stack_of(2) as stack:
        training = asyncio.create_task(train(stack, agent_spec(game, STEPS), KILLS, seed=1, seconds=900.0))
        run_id = await asyncio.to_thread(run_id_of, Client(stack.url, stack.api_key))
        url = f"http://127.0.0.1:{stack.state.read('ports.json')['agent.http']}"
        with GuessingAgent(url, stack.api_key, run_id, dies=0.02) as agent:
            outcome = await training
        ledger = read_ledger(stack.state.root, outcome.run_id)
    assert outcome.state == "succeeded"
    assert check(ledger, 8, STEPS, max_staleness=1, fixed_lag=True) == []
    assert len(outcome.killed) >= 2, "the run lives long enough to be disturbed"
    assert set(agent.faults) <= {401, 410}, "keys of a service that died, and of attempts that are over"
    samples = [sample for entry in ledger.entries.values() for sample in Group.FromString(entry.group).samples]
    rewards = {round(sample.episode.outcome.reward, 6) for sample in samples if sample.episode.outcome.status == REWARD_STATUS_OK}
    assert rewards <= {1.0, 0.9, 0.8, 0.7, 0.6}
    assert any(sample.episode.attempt for sample in samples), "an episode that was left is played again"


def trained_of(sample):
    """The ids of each turn that are trained."""
    ids = unpack_ids(sample.token_ids)
    return [ids[span.start : span.end] for span in sample.spans if span.trainable]


async def test_agents_of_a_worker_that_dies_while_it_draws_notice_nothing(stack_of, tmp_path, tmp_path_factory):
    """Their requests wait for another worker: no status but 200, and what each agent was told is what is trained."""
    game = make_game(tmp_path_factory.mktemp("game"))
    spec = agent_spec(game, 3)
    spec["environment"]["step_seconds"] = 30
    deaths = {"GRADBUS_CRASH_POINT": "mid-draw:30", "GRADBUS_CRASH_DIR": str(tmp_path)}
    async with stack_of(2, environment_overrides={"rollout-0": deaths, "rollout-1": deaths}) as stack:
        training = asyncio.create_task(train(stack, spec, seconds=600.0))
        run_id = await asyncio.to_thread(run_id_of, Client(stack.url, stack.api_key))
        url = f"http://127.0.0.1:{stack.state.read('ports.json')['agent.http']}"
        with GuessingAgent(url, stack.api_key, run_id, players=64) as agent:  # as many as the run has episodes at a time
            outcome = await training
        ledger = read_ledger(stack.state.root, outcome.run_id)
    assert (outcome.state, check(ledger, 8, 3, max_staleness=1, fixed_lag=True)) == ("succeeded", [])
    assert (tmp_path / "mid-draw-30").exists(), "the first worker that has drawn so many turns dies"
    assert (agent.faults, set(agent.ended)) == ([], {200})
    told = {tuple(turns) for of_one in agent.told.values() for turns in of_one}
    samples = [sample for entry in ledger.entries.values() for sample in Group.FromString(entry.group).samples]
    assert all(sample.episode.outcome.status == REWARD_STATUS_OK for sample in samples)
    assert all(tuple(trained_of(sample)) in told for sample in samples)
    assert not any(sample.episode.attempt for sample in samples)
