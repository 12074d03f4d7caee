"""Scorers that run beside the one that trains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from gradbus.algorithms import SHADOW
from gradbus.sandbox.bounds import MAX_COMPONENTS
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.base import Scorer

_log = structlog.get_logger(__name__)
_OK = reward_pb2.REWARD_STATUS_OK


class ShadowedScorer:
    """The results of one scorer, with what its shadows gave the same samples among the components."""

    def __init__(self, scorer: Scorer, shadows: Mapping[str, Scorer]) -> None:
        """`shadows`: by their names in the spec."""
        self._scorer = scorer
        self._shadows = shadows

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample, of the scorer that trains. The shadows have the same deadline; what they cannot score is left out."""
        async with asyncio.TaskGroup() as group:
            trained = group.create_task(self._scorer.score(request, deadline_seconds))
            beside = {name: group.create_task(_score(name, shadow, request, deadline_seconds)) for name, shadow in self._shadows.items()}
        results = trained.result()
        for name, task in beside.items():
            given = {result.sample_id: result.reward for result in task.result() if result.status == _OK}
            for result in results:
                if result.status == _OK and result.sample_id in given and len(result.components) + 2 <= MAX_COMPONENTS:
                    result.components[f"{SHADOW}{name}"] = given[result.sample_id]
                    result.components[f"{SHADOW}{name}.difference"] = abs(given[result.sample_id] - result.reward)
        return results

    async def close(self) -> None:
        """Closes all of them."""
        await asyncio.gather(self._scorer.close(), *(shadow.close() for shadow in self._shadows.values()))


async def _score(name: str, shadow: Scorer, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
    try:
        return await shadow.score(request, deadline_seconds)
    except Exception:  # noqa: BLE001 - the boundary of a shadow: whatever breaks in it costs no sample its reward
        _log.exception("shadow_scorer_broke", run_id=request.run_id, shadow=name)
        return ()
