"""Proof by what a server computes: beside what the trainer did for the same fixed text.

For adapters, which nobody can read back, and for a server that cannot compare its own tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gradbus.errors import AttestationError
from gradbus_rollout.engines.base import VersionProbe
from gradbus_rollout.engines.sglang.api import ServerApi

_NOISE: Final = 8.0
"""How many times the server and the trainer may differ more than they do for the base model."""
_LEAST_NOISE: Final = 2e-6
_ROUNDING: Final = 0.125
"""Share of the adapters' effect that a server may miss which rounds them to its own dtype."""
_FAR: Final = 0.5
"""Nats between one set of weights in a narrow dtype and in another; other weights are further apart, but those of a near step."""
_NEARER: Final = 3.0
"""How many times nearer to the version before an answer must be for nothing to have moved; two equally near cannot be told apart."""


async def prove_adapters(api: ServerApi, name: str, version: int, probe: VersionProbe) -> None:
    """Compares what the server computes for the probe with what the trainer did.

    They differ for the base model too, by rounding; how much, the server is asked as well. Raises AttestationError when they
    differ more with the adapters: it ignores them, or a part of them, or takes others.
    """
    base = _distance(await api.prompt_logprobs(probe.token_ids, None), probe.base_logprobs)
    found = _distance(await api.prompt_logprobs(probe.token_ids, name), probe.logprobs)
    effect = _distance(probe.logprobs, probe.base_logprobs)
    if not found <= _NOISE * max(base, _LEAST_NOISE) + _ROUNDING * effect:
        raise AttestationError(
            f"the server does not sample with the adapters of version {version}: its log-probabilities are up to {found:.2g} off the "
            f"trainer's, without adapters {base:.2g}, and the adapters move them by {effect:.2g}; it is loaded again"
        )


async def prove_weights(api: ServerApi, version: int, probe: VersionProbe, before: VersionProbe | None) -> None:
    """The same for whole weights, `before` being the probe of those that were held until now, where that is known.

    Raises AttestationError when the answer is far off, or much nearer to what was held before: nothing moved.
    """
    answer = await api.prompt_logprobs(probe.token_ids, None)
    found = _distance(answer, probe.logprobs)
    stayed = math.inf if before is None else _distance(answer, before.logprobs)
    if not found <= _FAR or found > _NEARER * max(stayed, _LEAST_NOISE):
        raise AttestationError(
            f"the server does not sample with version {version}: its log-probabilities are up to {found:.2g} off the trainer's, "
            f"{stayed:.2g} off those of the version before, and may be {_FAR:.2g} off; it is loaded again"
        )


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference; not a number where there is none to take."""
    if len(one) != len(other) or not one:
        return math.nan
    return max(abs(first - second) for first, second in zip(one, other, strict=True))
