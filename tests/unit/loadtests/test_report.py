"""What is told of a measurement."""

import json

import numpy as np
import pytest

from gradbus_load import probes, report
from gradbus_load.admissions import Admissions
from gradbus_load.outcome import Finding, Outcome, percentile
from gradbus_load.processes import Usage, cpu_seconds, usage
from gradbus_load.scenarios.memory import slope
from gradbus_load.scenarios.overlap import Row, Settings
from gradbus_load.scenarios.rest import Answers


def session(*outcomes):
    return report.Session("2026-01-02", {"processor": "two cores"}, "0.1", "1.5", [Finding("memcpy", 9.87, "GB/s")], list(outcomes))


def test_a_floor_is_held_or_missed_from_its_side():
    assert [Finding("m", value, "u", 10.0).holds for value in (9.0, 10.0, 11.0)] == [False, True, True]
    assert [Finding("m", value, "u", 10.0, "less").holds for value in (9.0, 10.0, 11.0)] == [True, True, False]
    assert Finding("m", 1.0, "u").holds is None


def test_the_report_names_date_machine_load_probes_and_floors(tmp_path):
    outcome = Outcome("throughput", [Finding("samples", 2500.0, "per s", 3000.0)], ("process", "s"), [("nats", 1.5)], {"rate": 2500})
    files = report.write(session(outcome), tmp_path / "results")
    assert sorted(path.name for path in files) == ["load.md", "throughput.json"]
    text = files[0].read_text()
    for words in ("2026-01-02", "two cores", "load average before: 0.1", "9.87", "2,500", "≥ 3,000: missed", "| nats"):
        assert words in text
    found = json.loads(files[1].read_text())
    assert (found["findings"][0]["holds"], found["data"], found["probes"][0]["unit"]) == (False, {"rate": 2500}, "GB/s")


def test_probes_measure_every_part_of_the_machine(tmp_path):
    found = probes.probe(tmp_path, probes.Effort(copy_mib=1, round_trips=20, sent_mib=2, syncs=10, loops=1000))
    assert len(found) == 6
    assert all(one.value > 0 for one in found)


def test_cpu_is_that_of_a_tree_and_a_process_started_anew_counts_from_its_start():
    import os

    assert usage({"tests": os.getpid(), "gone": 2**22 + 1}).keys() == {"tests"}
    before = {"a": Usage(5.0, 1, 1), "b": Usage(9.0, 1, 1)}
    assert cpu_seconds(before, {"a": Usage(6.0, 1, 1), "b": Usage(2.0, 1, 1), "c": Usage(3.0, 1, 1)}) == {"c": 3.0, "b": 2.0, "a": 1.0}


def test_latency_is_from_written_to_admitted_and_the_rate_leaves_out_the_ends():
    seen = Admissions({n: float(n) for n in range(101)}, {n: n + 0.5 for n in range(100)})
    assert seen.latencies(first=90) == [0.5] * 10
    assert seen.rate() == pytest.approx(1.0)
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0


def test_the_interval_of_a_slope_holds_the_truth_nearly_always_also_when_noise_lingers():
    seconds = np.arange(240.0)
    held = 0
    for seed in range(40):
        steps = np.random.default_rng(seed).normal(0, 5, 250)
        noise = np.convolve(steps, np.ones(5) / 5, mode="valid")[:240]
        _, low, high = slope(seconds, 100 + 0.5 * seconds + noise)
        held += low < 0.5 < high
    assert held >= 32


def test_the_bound_is_the_sum_on_policy_and_the_larger_part_otherwise():
    alone = Row("free", 0, generate=3.0, train=1.0, step=5.0, mean_staleness=0.0)
    assert (alone.ideal, alone.bound, alone.share) == (4.0, 1.0, 0.8)
    ahead = Row("free", 1, generate=3.0, train=1.0, step=4.0, mean_staleness=1.0)
    assert (ahead.ideal, ahead.share, ahead.speed_up) == (3.0, 0.75, 1.0)
    assert ahead.bound == pytest.approx(4 / 3)


def test_in_fixed_lag_the_longest_sample_of_a_step_is_waited_for():
    settings = Settings()
    assert settings.generation("fixed_lag", 1) > settings.generation("free", 1) > 0.5
    assert settings.generation("free", 0) == settings.generation("fixed_lag", 0), "on-policy nobody runs ahead"


def test_percentiles_of_answers_come_from_their_counts():
    row = {"name": "submit", "num_requests": 100, "num_failures": 1, "start_time": 10.0, "last_request_timestamp": 20.0}
    answers = Answers.of(row | {"response_times": {"90": 9, "10": 90, "500": 1}})
    assert (answers.a_second, answers.failures) == (10.0, 1)
    assert [answers.percentile(share) for share in (0.5, 0.95, 0.99, 1.0)] == [10, 90, 90, 500]
