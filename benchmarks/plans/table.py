"""What `gradbus plan --cpu` says of specs of several sizes, beside what this machine takes: `results/plans.md` and `plans.json`.

    python benchmarks/plans/table.py [--only NAME | --again]

Each measurement is a process of its own. Memory is the peak of its resident set beyond that of the same process with all imports and no
model. Seconds are those of the processor, of a step of the plain learner and of its samples by the embedded engine, so that other processes
disturb them little; the plan's are those of its threads together. One core is measured before each spec, and the plan rests on that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from comparison import models
from rows import Row, planned
from version import VERSION, write_version

from gradbus.plan.this_cpu import measured_rates
from gradbus.spec import RunSpec

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
Change = Mapping[str, Mapping[str, Any]]
BF16: Final = {"dtype": "bf16"}
SMALL: Final[Change] = {"rollout": {"group_size": 4, "slots": 8}, "schedule": {"groups_per_step": 2}}
SPECS: Final[Mapping[str, Change]] = {
    "5m": {},
    "5m, bf16": {"trainer": BF16},
    "5m, checkpointing": {"trainer": {"gradient_checkpointing": True}},
    "5m, LoRA": {"trainer": {"lora": {}}},
    "5m, two threads": {"trainer": {"threads": 2}},
    "5m, 16 groups of 16": {"rollout": {"group_size": 16, "slots": 256}, "schedule": {"groups_per_step": 16}},
    "27m": SMALL,
    "27m, bf16": {**SMALL, "trainer": BF16},
    "27m, bf16, LoRA": {**SMALL, "trainer": {**BF16, "lora": {}}},
    "27m, bf16, micro-batches of 512": {**SMALL, "trainer": {**BF16, "micro_batch_tokens": 512}},
    "27m, bf16, responses of 32": {"trainer": BF16, "rollout": {"max_new_tokens": 32}},
    "60m, bf16": {**SMALL, "trainer": BF16},
}


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description="Plans beside measurements.")
    parser.add_argument("--only", choices=tuple(SPECS), help="One spec, whose row is printed alone.")
    parser.add_argument("--again", action="store_true", help="Plan again beside the measurements that are stored.")
    options = parser.parse_args()
    if options.again:
        write([Row(**row) for row in json.loads((RESULTS / "plans.json").read_text())])
        return
    rows = []
    for name in SPECS:
        if options.only in {None, name}:
            rows.append(measured_row(name))
            print(_line(rows[-1]), flush=True)
    if options.only is None:
        write(rows)


def run_spec(name: str) -> dict[str, Any]:
    """The spec of a row."""
    body = models.run_spec(models.make(name.partition(",")[0]), 8, 0)
    body["trainer"]["threads"] = 1
    return body | {section: {**body[section], **fields} for section, fields in SPECS[name].items()}


def measured_row(name: str) -> Row:
    """Measures one core, then trainer and engine at the same time."""
    body = run_spec(name)
    folder = Path(body["model"]["path"])
    config = json.loads((folder / "config.json").read_text())
    rates = {**measured_rates(config["hidden_size"]), "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as published:
        write_version(RunSpec.model_validate(body), folder, Path(published) / VERSION)
        children = [_started(what, (folder, Path(published)), body) for what in ("trainer", "engine")]
        trainer, engine = (_answer(child) for child in children)
    measured = {"trainer": trainer["bytes"], "engine": engine["bytes"], "train": trainer["seconds"], "generate": engine["seconds"]}
    return Row(name, {**body, "model": {"path": "model"}, "data": {"train": "train.jsonl"}}, config, rates, measured)


def _started(what: str, folders: tuple[Path, Path], body: Mapping[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("child.py")), what, *map(str, folders)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdin is not None
    child.stdin.write(json.dumps(body))
    child.stdin.close()
    return child


def _answer(child: subprocess.Popen[str]) -> dict[str, float]:
    assert child.stdout is not None
    text = child.stdout.read()
    if child.wait():
        raise SystemExit(f"a measurement failed with status {child.returncode}; see its error above")
    found: dict[str, float] = json.loads(text.splitlines()[-1])
    return found


def _line(row: Row) -> str:
    forms = {"trainer": (1e6, ".0f"), "engine": (1e6, ".0f"), "train": (1.0, ".2f"), "generate": (1.0, ".2f")}
    plan = planned(row)
    cells = [
        f"{plan[what] / unit:{form}} | {row.measured[what] / unit:{form}} ({plan[what] / row.measured[what] - 1:+.0%})"
        for what, (unit, form) in forms.items()
    ]
    return f"| {row.name} | " + " | ".join(cells) + " |"


def write(rows: list[Row]) -> None:
    """`results/plans.md` and `results/plans.json`."""
    pairs = ("trainer, MB", "engine, MB", "train, CPU s", "generate, CPU s")
    head = "| spec |" + "".join(f" {name}: planned | measured |" for name in pairs)
    ways = " ".join((__doc__ or "").split("\n\n")[2].split())
    lines = [
        "# Plans beside measurements",
        "",
        f"{os.cpu_count()} cores {os.uname().machine}. {ways} Measured: {len(rows)} of its {len(SPECS)} specs.",
        "",
    ]
    lines += [head, "|---" * (1 + 2 * len(pairs)) + "|", *map(_line, rows)]
    (RESULTS / "plans.md").write_text("\n".join(lines) + "\n")
    (RESULTS / "plans.json").write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
