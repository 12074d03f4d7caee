"""docs/metrics.md has the names under which dashboards and alerts ask Prometheus."""

import re
from pathlib import Path

from gradbus.telemetry.registry import METRICS
from gradbus.telemetry.registry.page import prometheus_name

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"\b(?:gradbus|process|http|rpc|gen_ai|messaging|db)_[a-z_]+\b")


def test_dashboards_and_alerts_ask_for_names_of_the_page():
    files = [*(ROOT / "deploy/grafana/dashboards").rglob("*.json"), ROOT / "deploy/prometheus/alerts.yml"]
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for file in files for name in NAME.findall(file.read_text())}
    labels = {name.replace(".", "_") for metric in METRICS for name in metric.attributes}
    known = {prometheus_name(metric) for metric in METRICS}
    assert len(asked & known) > 30
    assert sorted(asked - known - labels) == []
