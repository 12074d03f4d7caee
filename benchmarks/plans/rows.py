"""A row of the table: what was measured, and all that its plan follows from."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from gradbus.plan import Workload, read_size
from gradbus.plan.memory import Bill
from gradbus.plan.this_cpu import card_of_rates
from gradbus.plan.times import step_times
from gradbus.spec import RunSpec

PROMPT: Final = 64


class Row(NamedTuple):
    """Of one spec."""

    name: str
    spec: Mapping[str, Any]
    model: Mapping[str, Any]
    """config.json."""
    rates: Mapping[str, Any]
    """Of one core, just before; and `cores`."""
    measured: Mapping[str, float]
    """Bytes of `trainer` and `engine`; seconds of `train` and `generate`."""


def planned(row: Row) -> dict[str, float]:
    """What the plan says of a row's spec, on a machine with its rates; the processor's seconds, of all threads."""
    spec, cores = RunSpec.model_validate(row.spec), int(row.rates["cores"])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(row.model))
        size = read_size(Path(folder))
    card = replace(card_of_rates(row.rates), cores=cores)
    bill = Bill.of(spec, size, Workload(PROMPT, spec.rollout.max_new_tokens), card.process)
    times, engine = step_times(bill, card, 1, "together"), bill.engine
    return {
        "trainer": bill.trainer.bytes,
        "engine": engine.bytes if engine is not None else 0,
        "train": times.train * min(cores, spec.trainer.threads),
        "generate": times.generate * min(cores, spec.rollout.threads),
    }
