"""Metrics in memory, and their export."""

import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from gradbus.telemetry import CardinalityLimit, Metrics, export_metrics, run_metrics
from gradbus.telemetry import metrics as module
from gradbus.telemetry.registry import EVERY, METRICS


def read(metrics, name):
    return {tuple(one.attributes.items()): one.value for one in metrics.read(name)}


@pytest.fixture
def exported(monkeypatch):
    """Collects the values by metric of fresh process metrics."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    monkeypatch.setattr(module.metrics, "get_meter", lambda _: meter)
    monkeypatch.setattr(module, "PROCESS", Metrics())
    monkeypatch.setattr(module, "_READERS", [])

    def collect():
        data = reader.get_metrics_data()
        found = (
            [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics] if data else []
        )
        return {metric.name: {tuple(point.attributes.items()): point.value for point in metric.data.data_points} for metric in found}

    return collect


def test_counts_add_up_by_attributes():
    metrics = Metrics()
    for side in ("low", "high", "low"):
        metrics.count("gradbus.groups", 2, {"gradbus.side": side})
    assert read(metrics, "gradbus.groups") == {(("gradbus.side", "low"),): 4, (("gradbus.side", "high"),): 2}
    assert read(metrics, "gradbus.trained.steps") == {}


def test_a_metric_that_the_registry_lacks_would_never_be_exported_and_is_refused():
    metrics = Metrics()
    for change in (metrics.count, lambda name: metrics.set(name, 1), lambda name: metrics.replace(name, "gradbus.state", {})):
        with pytest.raises(KeyError, match=r"gradbus\.of_nobody"):
            change("gradbus.of_nobody")


def test_what_gives_a_value_is_asked_when_it_is_read():
    metrics, depth = Metrics(), [1]
    metrics.set("gradbus.groups.waiting", lambda: len(depth))
    depth.append(2)
    assert list(read(metrics, "gradbus.groups.waiting").values()) == [2]


def test_values_that_are_replaced_are_gone():
    metrics = Metrics()
    metrics.replace("gradbus.run.state", "gradbus.state", {"running": 1})
    metrics.replace("gradbus.run.state", "gradbus.state", {"paused": 1})
    assert read(metrics, "gradbus.run.state") == {(("gradbus.state", "paused"),): 1}


def test_a_spread_is_a_histograms_cumulative_buckets():
    metrics = Metrics()
    metrics.observe_many("gradbus.samples.staleness", [0, 1, 1, 5])
    metrics.observe_many("gradbus.samples.staleness", [100])
    found = {key[0][1]: value for key, value in read(metrics, "gradbus.samples.staleness").items()}
    assert found == {"0": 1, "1": 3, "2": 3, "3": 3, "4": 3, "6": 4, "8": 4, "12": 4, "16": 4, "32": 4, "+Inf": 5}


def test_a_bounded_number_of_names_gets_through():
    few = CardinalityLimit(2)
    assert [few(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]


def test_a_run_is_exported_while_it_is_worked_on_and_never_again(exported):
    module.publish_metrics("trainer")
    for name in ("run-a", "run-b"):
        with export_metrics(run_metrics(name)) as metrics:
            metrics.count("gradbus.trained.steps", 3)
            assert exported()["gradbus.trained.steps"] == {(("gradbus.run.id", name),): 3}
    assert exported().get("gradbus.trained.steps", {}) == {}


def test_what_alerts_watch_begins_at_zero_where_it_is_emitted(exported):
    module.publish_metrics("weight_store")
    found = exported()
    assert set(found["gradbus.weights.troubles"].values()) == {0}
    assert len(found["gradbus.weights.troubles"]) == 3
    assert "gradbus.reward.failures" not in found, "another service's"


def test_reading_beside_a_service_that_adds_loses_nothing():
    metrics, over = Metrics(), threading.Event()

    def watch():
        while not over.is_set():
            metrics.read("gradbus.groups")

    thread = threading.Thread(target=watch)
    thread.start()
    for at in range(20_000):
        metrics.count("gradbus.groups", 1, {"gradbus.verdict": str(at % 200)})
    over.set()
    thread.join()
    assert sum(read(metrics, "gradbus.groups").values()) == 20_000


def test_the_registry_names_each_metric_once_with_services_that_are_there():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert set(metric.services) <= set(EVERY)
        assert metric.description.endswith(".")
        assert list(metric.buckets) == sorted(metric.buckets)


def test_a_run_is_named_by_what_dashboards_of_a_run_need_and_groups_by_nothing():
    attributes = {name for metric in METRICS for name in metric.attributes}
    assert [name for name in attributes if name.endswith(".id")] == ["gradbus.run.id"]
    assert not {"gradbus.group", "gradbus.sample", "service.instance.id"} & attributes
    of_runs = {metric.name for metric in METRICS if "gradbus.run.id" in metric.attributes}
    assert not [metric.name for metric in METRICS if metric.name in of_runs and metric.instrument == "histogram"], "these never end"
