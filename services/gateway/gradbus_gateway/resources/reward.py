"""The scorers of a run as a resource."""

from __future__ import annotations

from gradbus.control.scorers import ScorerChanges
from gradbus.resources.reward import RewardResource, ScorerTurn
from gradbus.spec import RunSpec


def reward_resource(run_id: str, spec: RunSpec, wanted: ScorerChanges, decided: ScorerChanges) -> RewardResource:
    """`spec` as it was submitted."""
    asked = {after.from_group: before.from_group for before, after in zip(wanted.changes, decided.changes, strict=False)}
    turns = [ScorerTurn(from_group=0, wanted_from_group=0, scorer=spec.reward.alone)]
    for change in decided.applied(spec).reward.changes:
        group = change.from_group
        turns.append(ScorerTurn(from_group=group, wanted_from_group=asked.get(group, group), scorer=change.alone))
    undecided = wanted.beyond(decided)
    turns += [ScorerTurn(from_group=None, wanted_from_group=change.from_group, scorer=change.alone) for change in undecided]
    return RewardResource(run_id=run_id, scorers=turns)
