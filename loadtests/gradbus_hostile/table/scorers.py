"""Scorers of users' own that flood the reward service. Their runs wait for rewards until the user cancels them."""

from __future__ import annotations

from typing import Final

from gradbus_hostile.material import Json, Material
from gradbus_hostile.scorers import FLOODS, address
from gradbus_hostile.table.conduct import cancel_while_it_waits_for_rewards
from gradbus_hostile.table.submission import CANCELLED, REFUSED, Submission


def _scorer(name: str) -> Submission:
    def body(material: Material) -> Json:
        return material.spec(reward={"service": address(name), "timeout_seconds": 3600.0})

    # Refused where a scorer on loopback is not allowed.
    return Submission(f"scorer: {name}", body, CANCELLED | REFUSED, cancel_while_it_waits_for_rewards)


SCORERS: Final = tuple(map(_scorer, FLOODS))
