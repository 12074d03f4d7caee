"""A run with an environment: whoever dies between two turns, the weights, episodes and rewards are those of an undisturbed run."""

from pathlib import Path

import pytest
from ledger import check, read_ledger
from smoke import train

from gradbus.v1.episode_pb2 import END_REASON_FAILED
from gradbus.v1.group_pb2 import Group

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "guess"
KILLS = ("environment", "rollout-0", "environment", "conductor", "environment", "buffer")


@pytest.fixture
def guessing(game):
    """Makes a short run in the world of the example, whose answers also draw random numbers."""
    source = (EXAMPLE / "environment.py").read_text().replace("import Any\n", "import Any\nimport random\n")
    source = source.replace('{"message": "<"', '{"message": "-" * random.randint(0, 1) + "<"').replace('else ">"', 'else "-" + ">"')

    def make(steps):
        return {
            "name": "guess",
            "model": {"path": str(game / "model")},
            "data": {"train": str(game / "letters.jsonl"), "eval": str(game / "letters.jsonl")},
            "environment": {"source": source, "max_turns": 4},
            "rollout": {"slots": 32, "group_size": 4, "max_new_tokens": 2, "stop_token_ids": list(range(3, 18))},
            "schedule": {"groups_per_step": 8, "steps": steps},
            "checkpoint": {"every": 4, "keep": 100},
            "evaluation": {"every": 8, "samples": 15, "metric": "found"},
        }

    return make


def episodes(ledger):
    """By index, all that happened: tokens, log-probabilities, turns, rewards. An attempt more is no difference."""
    found = {}
    for index, entry in ledger.entries.items():
        group = Group.FromString(entry.group)
        for sample in group.samples:
            assert sample.episode.end_reason != END_REASON_FAILED
            sample.episode.attempt = 0
        found[index] = entry.verdict, [sample.SerializeToString(deterministic=True) for sample in group.samples], list(entry.rewards)
    return found


@pytest.mark.parametrize(("steps", "kills"), [(24, KILLS), pytest.param(120, KILLS * 3, marks=pytest.mark.slow)])
async def test_deaths_between_turns_change_neither_weights_nor_episodes(stack_of, guessing, steps, kills):
    spec = guessing(steps)
    async with stack_of(2) as stack:
        calm = await train(stack, spec)
        disturbed = await train(stack, spec, kills, seed=1, seconds=600.0)
        assert (calm.state, disturbed.state) == ("succeeded", "succeeded")
        assert disturbed.digest == calm.digest
        ledgers = [read_ledger(stack.state.root, run.run_id) for run in (calm, disturbed)]
    for ledger in ledgers:
        assert check(ledger, 8, steps, max_staleness=1, fixed_lag=True) == []
    assert episodes(ledgers[0]) == episodes(ledgers[1])
    assert len(disturbed.killed) >= 3, "the run lives long enough to be disturbed"
