"""Proof of a load by log-probabilities: the server's for a fixed text, compared with the trainer's.

For adapters, which nobody can read back, and for a server that cannot compare its own tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from gradbus.errors import AttestationError
from gradbus_rollout.engines.base import ExpectedLogprobs

_NOISE_FACTOR: Final = 8.0
"""Factor by which server and trainer may differ with the adapters more than without."""
_MIN_DISTANCE: Final = 2e-6
"""Nats. A smaller measured distance counts as this much."""
_ROUNDING: Final = 0.125
"""Share of the adapters' effect that a server may lose by rounding them to its own dtype."""
_MAX_NATS: Final = 0.5
"""The same weights in two narrow dtypes differ by less; other weights differ by more, except those of a near step."""
_MAX_RATIO_TO_PREVIOUS: Final = 3.0
"""An answer this many times nearer to the previous version shows that nothing moved. Below it, the two cannot be distinguished."""


class LogprobServer(Protocol):
    """A server that computes log-probabilities of a text."""

    async def prompt_logprobs(self, token_ids: Sequence[int], adapter: str | None) -> tuple[float, ...]:
        """Log-probabilities of all tokens but the first, at temperature 1, from the base model or with adapters."""
        ...


async def prove_adapters(api: LogprobServer, name: str, version: int, probe: ExpectedLogprobs) -> None:
    """Compares the server's log-probabilities of the probe with the trainer's.

    Rounding makes them differ for the base model too; the server is asked for that difference as well. Raises AttestationError
    when they differ more with the adapters: the server ignores them, or a part of them, or uses others.
    """
    base = _distance(await api.prompt_logprobs(probe.token_ids, None), probe.base_logprobs)
    found = _distance(await api.prompt_logprobs(probe.token_ids, name), probe.logprobs)
    effect = _distance(probe.logprobs, probe.base_logprobs)
    if not found <= _NOISE_FACTOR * max(base, _MIN_DISTANCE) + _ROUNDING * effect:
        raise AttestationError(
            f"the server does not sample with the adapters of version {version}: its log-probabilities are up to {found:.2g} off the "
            f"trainer's, without adapters {base:.2g}, and the adapters move them by {effect:.2g}; it is loaded again"
        )


async def prove_weights(api: LogprobServer, version: int, probe: ExpectedLogprobs, previous: ExpectedLogprobs | None) -> None:
    """Compares the server's log-probabilities with the probe's, for whole weights.

    `previous` is the probe of the weights before this load, if known. Raises AttestationError when the answer is far off, or much
    nearer to the previous weights, which shows that nothing moved.
    """
    answer = await api.prompt_logprobs(probe.token_ids, None)
    found = _distance(answer, probe.logprobs)
    stayed = math.inf if previous is None else _distance(answer, previous.logprobs)
    if not found <= _MAX_NATS or found > _MAX_RATIO_TO_PREVIOUS * max(stayed, _MIN_DISTANCE):
        raise AttestationError(
            f"the server does not sample with version {version}: its log-probabilities are up to {found:.2g} off the trainer's, "
            f"{stayed:.2g} off those of the version before, and may be {_MAX_NATS:.2g} off; it is loaded again"
        )


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of two equally long sequences; NaN for others."""
    if len(one) != len(other) or not one:
        return math.nan
    return max(abs(first - second) for first, second in zip(one, other, strict=True))
