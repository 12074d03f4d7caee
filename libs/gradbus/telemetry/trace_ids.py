"""Trace ids and sampling: functions of a run's id and of a group or step, with the same result in every process."""

from __future__ import annotations

import random
from hashlib import blake2b

_BITS = 64
_TRACE_BITS = 128
_RANDOM_BITS = 56  # the bits that W3C guarantees to be random, which a collector's probabilistic sampler reads too
_SAMPLED = "01"


def group_trace(run_id: str, index: int) -> str:
    """Traceparent of the first span of a training group's trace."""
    return _first_span(f"{run_id}/group/{index}")


def evaluation_trace(run_id: str, version: int, index: int) -> str:
    """Traceparent of the first span of the trace of a held-out row, sampled by `version`."""
    return _first_span(f"{run_id}/evaluation/{version}/{index}")


def step_trace(run_id: str, step: int, term: int) -> str:
    """Traceparent of the first span of a step's trace. A restarted trainer has another term, so a repeated step is another trace."""
    return _first_span(f"{run_id}/step/{step}/{term}")


def start_trace(run_id: str, step: int, term: int) -> str:
    """Traceparent of the first span of the trace of a trainer's start at `step`."""
    return _first_span(f"{run_id}/start/{step}/{term}")


def is_sampled(traceparent: str, share: float) -> bool:
    """Whether the trace is in the sampled `share` of all traces (0 to 1). A trace sampled at one share is sampled at every larger one."""
    trace_id = int(traceparent[3:35], 16)
    return (trace_id & ((1 << _RANDOM_BITS) - 1)) < share * (1 << _RANDOM_BITS)


def new_trace() -> str:
    """Traceparent of the first span of a trace with a random id."""
    return f"00-{_random(_TRACE_BITS)}-{_random(_BITS)}-{_SAMPLED}"


def child_of(traceparent: str) -> str:
    """Traceparent of a new span in the same trace; empty if `traceparent` is empty."""
    return f"{traceparent[:36]}{_random(_BITS)}-{_SAMPLED}" if traceparent else ""


def _random(bits: int) -> str:
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


def _first_span(subject: str) -> str:
    digest = blake2b(f"gradbus:trace:{subject}".encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-{_SAMPLED}"
