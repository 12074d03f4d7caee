"""What the profile makes of sampled stacks, and the files that it writes."""

import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[3]
MEASURED = ("commit", "date", "machine", "steps_per_second", "cpu_ms_per_step", "note")
RUNNER = "main (gradbus/process/runner.py)"


@pytest.fixture(scope="module")
def modules():
    """Both modules; the folder has a file named like a package, so it is on the path for no longer than this."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return import_module("sampled_stacks"), import_module("charts.flame_graph")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def stacks(modules):
    return modules[0]


@pytest.fixture
def flame_graph(modules):
    return modules[1].flame_graph


@pytest.mark.parametrize(
    ("command", "service"),
    [
        ("/venv/bin/python -m gradbus_weight_store", "weight_store"),
        ("/venv/bin/python -m gradbus.embedded --state /tmp/x", "supervisor"),
        ("/venv/bin/python -m gradbus.tokenizer.child", ""),
        ("/venv/bin/nats-server -c /tmp/x/nats.conf", "nats-server"),
        ("/venv/bin/valkey-server 127.0.0.1:6379", "buffer"),
    ],
)
def test_the_service_of_a_process_is_in_its_command(stacks, command, service):
    assert stacks.service_of(command) == service


def test_a_sample_belongs_to_the_process_that_is_named_last_without_lines_and_outer_frames(stacks):
    outer = 'process 1:"python -m gradbus.embedded";process 2:"python -m gradbus_trainer";run_process (gradbus/process/runner.py:7)'
    text = f"{outer};a (x.py:3);b (y.py:4) 5\n{outer};a (x.py:9);b (y.py:4) 2\n"
    found = stacks.by_service(stacks.parse_collapsed(text), {1: "supervisor", 2: "trainer"})
    assert found == {"trainer": Counter({("a (x.py)", "b (y.py)"): 7})}


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        ((RUNNER, "read (gradbus_trainer/step/groups.py)", "frombuffer (numpy/core.py)"), "gradbus_trainer.step"),
        ((RUNNER, "run (gradbus_trainer/train_loop.py)"), "gradbus_trainer.train_loop"),
        ((RUNNER, "main (gradbus_trainer/__main__.py)", "_read_loop (nats/aio/client.py)", "send (socket.py)"), "nats"),
        ((RUNNER, "EpollSelector.select (selectors.py)"), "select"),
        ((RUNNER, "_run_once (asyncio/base_events.py)", "heappop (heapq.py)"), "event loop"),
    ],
)
def test_the_part_is_the_package_of_the_innermost_frame_of_ours(stacks, frames, part):
    assert stacks.part_of(frames) == part


def test_the_flame_graph_is_xml_with_a_box_of_each_frame_that_is_wide_enough(flame_graph):
    drawn = flame_graph({("trainer", "<lambda> (x.py)"): 3.0, ("trainer", "thin (y.py)"): 0.001, ("rollout",): 1.0}, "a & b")
    titles = [node.text for node in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["rollout: 25.0%", "trainer: 75.0%", "<lambda> (x.py): 75.0%"]


def test_every_line_of_the_history_has_the_same_fields():
    lines = [json.loads(line) for line in (ROOT / "benchmarks/results/history.jsonl").read_text().splitlines()]
    assert lines
    assert {tuple(line) for line in lines} == {MEASURED}
    assert all(line["cpu_ms_per_step"]["trainer"] > 0 for line in lines)


def test_the_page_has_a_place_for_the_figures_and_the_graph_is_small():
    page = (ROOT / "docs/performance.md").read_text()
    assert page.index("<!-- measured -->") < page.index("| service | part |") < page.index("<!-- /measured -->")
    assert (ROOT / "benchmarks/results/profile.svg").stat().st_size < 300_000
