"""The parts of a grader in the traces of the groups they judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gradbus.telemetry import TimedSpan, record
from gradbus.v1.reward_pb2 import ScoreSample


@contextmanager
def graded(parts: Iterable[str], samples: Iterable[ScoreSample]) -> Iterator[None]:
    """Tells each traced group that these parts judged it, together with the others of the call, for as long as the block took."""
    groups = {sample.traceparent for sample in samples if sample.traceparent}
    began = time.time_ns()
    error = ""
    try:
        yield
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
        raise
    finally:
        ended = time.time_ns()
        for name in parts if groups else ():
            for group in groups:
                record(TimedSpan("grade", began, ended, group, attributes={"gradbus.grader.part": name}, error=error))
