"""A run that an agent plays: whoever dies at a point of an episode, weights and episodes are those of an undisturbed run."""

import asyncio
import json

import pytest
from guessing_agent import ClaimingAgent, run_id_of

from gradbus.client import Client

from .conftest import loaded
from .holds import POINTS, Calm, held_stack, holds_of, played

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]

VICTIMS = ("agent", "rollout-0", "conductor", "buffer", "nats", "reward", "trainer-0")
STEPS = 40
PAGE = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
TOOLS = [{"type": "function", "function": {"name": "p", "description": "Opens a page.", "parameters": PAGE}}]


class LedgerAgent(ClaimingAgent):
    """Opens pages of examples/ledger for the policy. What it asks is a function of the item and the turns, as in every attempt."""

    def __init__(self, url, key, run):
        super().__init__(url, key, run, players=64)  # as many as the run has episodes at a time
        self.world = loaded("ledger", "environment").Environment

    async def episode(self, http, episode):
        headers, item, world, said = {"authorization": f"Bearer {episode['api_key']}"}, episode["item"], self.world(), ""
        world.reset(item, seed=item["page"])
        messages = [{"role": "user", "content": item["prompt"]}]
        while True:
            body = {"model": episode["model"], "messages": messages, "tools": TOOLS}
            answer = await http.post(f"{episode['base_url']}/chat/completions", json=body, headers=headers)
            if answer.status_code == 403:  # a limit of the run
                break
            if answer.status_code != 200:
                return  # the service died, and the episode is played in another attempt
            message = answer.json()["choices"][0]["message"]
            said = message["content"] or said
            if not message.get("tool_calls"):
                break
            messages = [*messages, message, *(self.result(world, call) for call in message["tool_calls"])]
        rewards = world.reward(said)
        end = {"attempt": episode["attempt"], "reward": rewards.pop("reward"), "components": rewards}
        await http.post(f"{episode['base_url']}/agent/episodes/{episode['episode']}/end", json=end, headers=headers)

    @staticmethod
    def result(world, call):
        page = json.loads(call["function"]["arguments"])["page"]
        return {"role": "tool", "tool_call_id": call["id"], "content": world.p(page)}


async def played_by_agent(stack, spec):
    """As `played`, with the agent beside it."""
    playing = asyncio.create_task(played(stack, spec))
    run_id = await asyncio.to_thread(run_id_of, Client(stack.url, stack.api_key))
    url = f"http://127.0.0.1:{stack.state.read('ports.json')['agent.http']}"
    with LedgerAgent(url, stack.api_key, run_id):
        return await playing


@pytest.fixture(scope="session")
def spec(looking_up):
    made = looking_up(STEPS) | {"deterministic": True}
    return made | {"environment": {"agent": "pull", "max_turns": 3, "step_seconds": 30}}


@pytest.fixture(scope="session")
def calm(tmp_path_factory, spec):
    return Calm(tmp_path_factory.mktemp("calm"), lambda steps: spec, played_by_agent)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("victim", VICTIMS)
async def test_whoever_dies_at_all_points_changes_neither_weights_nor_episodes(stack_of, spec, calm, tmp_path, victim, seed):
    holds = holds_of((victim,) * len(POINTS), seed)
    async with held_stack(stack_of, tmp_path / "holds", holds) as stack:
        assert await played_by_agent(stack, spec) == await calm.of(STEPS)
