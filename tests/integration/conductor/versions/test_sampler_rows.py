"""Rows of the version that sampled a group, in its entry."""

import dataclasses

import pytest

from gradbus_conductor.groups.scoring import Scoring
from gradbus_conductor.groups.traces import GroupTraces

pytestmark = pytest.mark.usefixtures("never_late")


@pytest.mark.parametrize("begins_with_adapters", [False, True])
async def test_each_group_has_the_rows_of_its_own_version(
    begins_with_adapters, forked, clients, stub, run_id, record, published, until, reference, group
):
    sections, adapters = forked if begins_with_adapters else ({}, "")
    found = {}
    judge = Scoring(
        dataclasses.replace(clients, weight_store=stub),
        run_id,
        record(algorithm={"name": "score_centering", "centering": 5}, **sections).spec,
        GroupTraces(run_id, 0.0),
        lambda entry: found.update({entry.index: entry}),
    )
    reference.short = 1
    digest = await published(4)
    judge.submit([(group(0, versions=(4,)), "{}"), (group(1, versions=(0,)), "{}")])
    await until(lambda: len(found) == 2)
    await judge.close()
    for entry in found.values():
        assert [(len(rows.ids), len(rows.logprobs)) for rows in entry.behaviour_rows] == [(60, 72)] * 2
        assert (list(entry.reference_logprobs), list(entry.teacher_logprobs), list(entry.teacher_rows)) == ([], [], [])
    assert {tuple(ids): files for ids, files in zip(reference.calls, reference.versions, strict=True)} == {
        ("0.0", "0.1"): [digest],
        ("1.0", "1.1"): [adapters] if adapters else [],
    }
    assert len(reference.asked) == 6, "the first answer lacked a number"
