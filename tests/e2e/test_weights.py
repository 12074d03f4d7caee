"""The copying task over each weight transport: it learns, and ends with the same bits."""

import pytest
from ledger import check, read_ledger
from smoke import EXAMPLE, make_example, smoke_spec
from versions import worst_difference

from gradbus.client import document

GROUPS, STEPS = 32, 120


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def train(lab, example):
    def run(transport):
        spec = smoke_spec(example, rollout={"slots": 128, "group_size": 8}, schedule={"groups_per_step": GROUPS, "steps": STEPS})
        spec["weights"] = {"transport": transport, "dtype": "bf16"}
        return lab.ends(lab.client.submit(spec, EXAMPLE).id, seconds=400)

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_over_deltas_learns_and_ends_in_the_bits_of_one_over_whole_files(lab, train, example):
    store, delta = train("store"), train("delta")
    assert lab.final_digest(store) == lab.final_digest(delta)
    rewards = [step["reward"] for step in lab.events(delta["id"], "metrics")]
    assert sum(rewards[-10:]) / 10 > 5 * sum(rewards[:5]) / 5
    whole = {version["version"]: version["whole"] for version in document(lab.client.versions_page(delta["id"]))["data"]}
    assert (whole[STEPS - 1], whole[STEPS]) == (False, True), "checkpoints alone are whole"
    assert all(version["whole"] for version in document(lab.client.versions_page(store["id"]))["data"])
    assert list(lab.state.rglob("shards/*")), "where object storage is a folder, a worker writes what it made of deltas alone"
    ledger = read_ledger(lab.state, delta["id"])
    assert check(ledger, GROUPS, STEPS, 1, fixed_lag=True) == []
    assert worst_difference(lab.state, example / "model", ledger) < 1e-5
