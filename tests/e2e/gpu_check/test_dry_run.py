"""`make gpu-check` in dry mode: its parts run here, on the CPU, and the report has the form that docs/gpu.md promises."""

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).parents[3]
TEXT, NUMBER = {"type": "string"}, {"type": "number"}
MAYBE = {"type": ["number", "null"]}


def exactly(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CHECK = exactly(
    name=TEXT,
    kind={"enum": ["correct", "speed"]},
    value=MAYBE,
    unit=TEXT,
    bound=MAYBE,
    expected=MAYBE,
    share=MAYBE,
    ceiling=TEXT,
    ok={"type": "boolean"},
)
PART = exactly(
    name=TEXT,
    status={"enum": ["pass", "fail", "skip", "timeout"]},
    reason=TEXT,
    seconds=NUMBER,
    checks={"type": "array", "items": CHECK},
    log_tail=TEXT | {"maxLength": 2000},
)
REPORT = exactly(
    schema={"const": "gradbus.gpu_check/1"},
    dry={"type": "boolean"},
    started=TEXT | {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$"},
    seconds=NUMBER,
    device={"type": "object"},
    versions={"type": "object", "additionalProperties": TEXT},
    probes={"type": "object", "additionalProperties": NUMBER},
    parts={"type": "array", "items": PART},
    verdict={"enum": ["pass", "fail", "incomplete"]},
)
MOST_BYTES = 1 << 20
PROBES = {"copy", "gemm_bf16", "gemm_fp32", "h2d_pinned", "h2d_pageable", "d2h_pinned", "d2h_pageable"}
RUN = ["probe", "operators", "decoder", "trainer", "engine", "weights", "two_processes", "stack", "placement"]
SHORT = ["probe", "trainer", "engine", "weights"]
"""What the usual tests run; the whole takes minutes."""


@pytest.fixture(scope="module", params=[SHORT, pytest.param(RUN, marks=pytest.mark.slow)], ids=["short", "whole"])
def parts_run(request):
    """The parts that should pass."""
    return request.param


@pytest.fixture(scope="module")
def dry_run(parts_run, tmp_path_factory):
    """What the command prints, its exit status, and the report's text."""
    out = tmp_path_factory.mktemp("gpu-check") / "report.json"
    environment = {name: value for name, value in os.environ.items() if name != "GRADBUS_SGLANG_PYTHON"} | {"GPU_CHECK_DRY": "1"}
    only = f" --only {' '.join(SHORT)}" if parts_run is SHORT else ""
    command = ["make", "--no-print-directory", "gpu-check", f"GPU_CHECK=--out {out}{only}"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return ended, out.read_text()


def test_the_report_has_the_promised_form(dry_run):
    _, text = dry_run
    jsonschema.validate(json.loads(text), REPORT)
    assert len(text) < MOST_BYTES


def test_every_part_passes_but_those_whose_software_is_not_here(dry_run, parts_run):
    ended, text = dry_run
    parts = {part["name"]: part for part in json.loads(text)["parts"]}
    assert {name: (part["status"], part["reason"], part["log_tail"]) for name, part in parts.items() if name in RUN} == dict.fromkeys(
        parts_run, ("pass", "", "")
    )
    assert ended.returncode == 0
    if parts_run is SHORT:
        assert list(parts) == SHORT
        return
    assert list(parts) == [*RUN[:-2], "deepspeed", "stack", "placement", "sglang"]
    assert (parts["sglang"]["status"], "GRADBUS_SGLANG_PYTHON" in parts["sglang"]["reason"]) == ("skip", True)
    assert parts["deepspeed"]["status"] in {"pass", "skip"}


def test_every_part_checks_something_and_tells_its_speeds_beside_the_probes(dry_run, parts_run):
    _, text = dry_run
    report = json.loads(text)
    assert report["probes"].keys() == PROBES
    kinds = {part["name"]: {check["kind"] for check in part["checks"]} for part in report["parts"] if part["name"] in parts_run[1:]}
    assert kinds == {name: {"correct", "speed"} - ({"speed"} if name == "decoder" else set()) for name in parts_run[1:]}
    named = {check["ceiling"] for part in report["parts"] for check in part["checks"]}
    assert named >= {"gemm_bf16", "d2h_pinned"} | ({"copy"} if "operators" in parts_run else set())


def test_the_table_comes_last_and_says_what_was_skipped(dry_run):
    ended, _ = dry_run
    assert "PASS on " in ended.stdout
    assert ended.stdout.splitlines()[-1].endswith("report.json")
