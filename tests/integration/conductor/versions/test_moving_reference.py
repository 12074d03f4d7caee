"""A KL to a version of the run: each group is compared with the version that its own version decides."""

import dataclasses

import pytest

from gradbus_conductor.groups.scoring import Scoring
from gradbus_conductor.groups.traces import GroupTraces

pytestmark = pytest.mark.usefixtures("never_late")
MOVING = {"algorithm": {"kl": 0.1, "kl_reference_steps": 3}}


@pytest.fixture
async def scoring(clients, stub, run_id, record):
    """The scoring of a run with a moving reference, and its entries by index."""
    found = {}
    made = Scoring(
        dataclasses.replace(clients, weight_store=stub),
        run_id,
        record(**MOVING).spec,
        GroupTraces(run_id, 0.0),
        lambda entry: found.update({entry.index: entry}),
    )
    yield made, found
    await made.close()


async def test_each_group_is_compared_with_the_version_of_the_last_multiple(scoring, published, until, reference, group):
    """Of versions 2, 3, 5 and 7 that is the base model, 3, 3 and 6: one call each, whatever the order."""
    digests = {step: await published(step) for step in (3, 6)}
    judge, found = scoring
    judge.submit([(group(index, versions=(version,)), "{}") for index, version in enumerate([5, 7, 2, 3])])
    await until(lambda: len(found) == 4)
    asked = {tuple(ids): files for ids, files in zip(reference.calls, reference.versions, strict=True)}
    assert asked == {("0.0", "0.1", "3.0", "3.1"): [digests[3]], ("1.0", "1.1"): [digests[6]], ("2.0", "2.1"): []}
    assert all(len(entry.reference_logprobs) == 2 for entry in found.values())


async def test_version_0_of_a_run_that_goes_on_with_adapters_has_them(forked, clients, run_id, record, until, reference, group):
    sections, digest = forked
    found = {}
    judge = Scoring(
        clients, run_id, record(**MOVING, **sections).spec, GroupTraces(run_id, 0.0), lambda entry: found.update({entry.index: entry})
    )
    judge.submit([(group(index, versions=(index,)), "{}") for index in range(3)])
    await until(lambda: len(found) == 3)
    await judge.close()
    assert reference.versions == [[digest]], "versions 0 to 2 are compared with version 0, which is not the base"


async def test_a_version_that_is_not_there_yet_is_asked_for_again_and_says_which(scoring, published, until, reference, group):
    judge, found = scoring
    judge.submit([(group(0, versions=(4,)), "{}")])
    await until(lambda: "version 3, which the samples are compared with: the weight store" in judge.state.failing.get(0, ""))
    assert (found, reference.asked) == ({}, [])
    await published(3)
    await until(lambda: 0 in found)
    assert judge.state.failing == {}
