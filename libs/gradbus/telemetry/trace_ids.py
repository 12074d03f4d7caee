"""Which trace is whose, and which are recorded: functions of a run's id and a place in it, the same in every process."""

from __future__ import annotations

import random
from hashlib import blake2b

_BITS = 64
_TRACE_BITS = 128
_RANDOM_BITS = 56  # what W3C promises to be uniform, and what a collector's own probabilistic sampler reads
_SAMPLED = "01"


def group_trace(run_id: str, index: int) -> str:
    """Traceparent of the first span of a training group's trace."""
    return _first_span(f"{run_id}/group/{index}")


def evaluation_trace(run_id: str, version: int, index: int) -> str:
    """The same of a held-out row, answered by `version`."""
    return _first_span(f"{run_id}/evaluation/{version}/{index}")


def step_trace(run_id: str, step: int, term: int) -> str:
    """The same of a training step. A trainer that comes back has another term, so a step trained again is another trace."""
    return _first_span(f"{run_id}/step/{step}/{term}")


def start_trace(run_id: str, step: int, term: int) -> str:
    """The same of a trainer's beginning at `step`."""
    return _first_span(f"{run_id}/start/{step}/{term}")


def is_sampled(traceparent: str, share: float) -> bool:
    """Whether the trace is among `share` of all, 0 to 1. One that is stays so for every larger share."""
    trace_id = int(traceparent[3:35], 16)
    return (trace_id & ((1 << _RANDOM_BITS) - 1)) < share * (1 << _RANDOM_BITS)


def new_trace() -> str:
    """A first span's traceparent in a trace that has no name."""
    return f"00-{_random(_TRACE_BITS)}-{_random(_BITS)}-{_SAMPLED}"


def child_of(traceparent: str) -> str:
    """A new span's traceparent in the trace of another; empty if that is empty."""
    return f"{traceparent[:36]}{_random(_BITS)}-{_SAMPLED}" if traceparent else ""


def _random(bits: int) -> str:
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


def _first_span(place: str) -> str:
    digest = blake2b(f"gradbus:trace:{place}".encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-{_SAMPLED}"
