"""A run that compares its samples with versions of its own: whoever dies in the middle, weights and log are those of an undisturbed run."""

import pytest
from ledger import check, read_ledger
from smoke import train

from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

STEPS, GROUPS = 12, 8
POINTS = {
    "trainer-0": "mid-publish:5",
    "rollout-0": "mid-decode:2",
    "conductor": "after-append:2",
    "reference": "mid-answer:2",
}
"""Each process dies: before a version is published, between two tokens, after groups were logged, before an answer."""


@pytest.fixture
def compared(spec):
    """Rows of the version that sampled, and a KL to the version of the last multiple of three."""
    algorithm = {"name": "score_centering", "centering": 8, "kl": 0.05, "kl_reference_steps": 3, "filter": "none"}
    schedule = {"groups_per_step": GROUPS, "steps": STEPS, "max_staleness": 2}
    return spec | {"name": "compared", "algorithm": algorithm, "schedule": schedule, "checkpoint": {"every": 4, "keep": 100}}


def content(ledger):
    """By index, what was trained: samples, and what both versions say of them, bit for bit."""
    found = {}
    for index, entry in ledger.entries.items():
        assert entry.verdict == VERDICT_TRAIN
        group = Group.FromString(entry.group)
        samples = [(sample.token_ids, sample.logprobs) for sample in group.samples]
        rows = [(row.ids, row.logprobs) for row in entry.behaviour_rows]
        assert len(rows) == len(entry.reference_logprobs) == len(samples)
        found[index] = group.version, samples, list(entry.reference_logprobs), rows
    return found


@pytest.mark.slow
async def test_a_death_of_every_service_changes_neither_weights_nor_log(stack_of, compared, tmp_path):
    async with stack_of(1) as stack:
        for name, point in POINTS.items():
            (tmp_path / name).mkdir()
            stack.config.environment_overrides[name] = {"GRADBUS_CRASH_POINT": point, "GRADBUS_CRASH_DIR": str(tmp_path / name)}
        alive = [name for name in POINTS if name != "reference"]
        for name in alive:  # the reference service starts with its run
            await stack.kill(name)
        await stack.until_ready(alive, 300.0)
        outcome = await train(stack, compared)
        for name, point in POINTS.items():
            assert [marker.name for marker in (tmp_path / name).iterdir()] == [point.replace(":", "-")], f"{name} did not die at {point}"
        calm = await train(stack, compared)
        ledgers = [read_ledger(stack.state.root, run.run_id) for run in (outcome, calm)]
        for ledger in ledgers:
            assert check(ledger, GROUPS, STEPS, max_staleness=2, fixed_lag=True) == []
        assert (outcome.state, calm.state, outcome.digest) == ("succeeded", "succeeded", calm.digest)
        assert content(ledgers[0]) == content(ledgers[1])
        assert {version for version, *_ in content(ledgers[0]).values()} == set(range(STEPS - 2))
