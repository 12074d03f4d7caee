"""Dashboards and alerts as files: they equal the generator's output, Grafana can load them, and their queries use emitted metrics."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from otlp_lab import label, series_names

from gradbus.telemetry.registry import METRICS

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "deploy/grafana"
BOARDS = {path.name: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
RULES = [rule for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"] for rule in group["rules"]]
SOURCES = yaml.safe_load((GRAFANA / "provisioning/datasources/gradbus.yml").read_text())["datasources"]
KINDS = {"timeseries", "stat", "heatmap", "bargauge"}
NOT_OURS = {"ALERTS", "up"} | {
    f"otel_sdk_{place}_total" for of in ("span", "log") for place in (f"processor_{of}_processed", f"exporter_{of}_exported")
}
"""Series of Prometheus itself and of the SDK."""
EXPORTERS = json.loads((GRAFANA / "exporters.json").read_text())
"""What the dashboard of the cluster takes from others: by exporter, its metrics and their labels."""
FOREIGN = {series: set(labels) for metrics in EXPORTERS.values() for series, labels in metrics.items()}
WORDS = {"sum", "max", "min", "avg", "count", "group", "topk", "rate", "increase", "changes", "resets", "last_over_time"}
WORDS |= {"by", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "job", "instance"}
WORDS |= {"histogram_quantile", "clamp_min", "vector", "label_values"}


def queries():
    for name, panel in PANELS:
        for target in panel["targets"]:
            yield f"{name}: {panel['title']}", target["expr"]
    for name, board in BOARDS.items():
        for variable in board["templating"]["list"]:
            yield f"{name}: ${variable['name']}", variable["query"]["query"]
        for annotation in board["annotations"]["list"]:
            yield f"{name}: {annotation['name']}", annotation["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def named_in(expr):
    """(series, labels) in a query; quoted text and windows in brackets are values."""
    bare = re.sub(r"\[[^\]]*\]", "", re.sub(r'"[^"]*"', '""', expr))
    labels = {name for inside in re.findall(r"\{([^}]*)\}", bare) for name in re.findall(r"(\w+)\s*(?==|!)", inside)}
    labels |= {name.strip() for inside in re.findall(r"(?:by|on|ignoring) \(([^)]+)\)", bare) for name in inside.split(",")}
    if found := re.search(r"label_values\(.*, (\w+)\)", bare):
        labels.add(found[1])
    words = set(re.findall(r"(?<![\w$])[a-zA-Z_]\w*", re.sub(r"\{[^}]*\}", "", bare)))
    return words - WORDS - labels, labels


def test_what_is_committed_is_what_the_generator_writes(tmp_path):
    program = "import build; [print(path) or (print(len(text))) for path, text in build.written().items() if path.read_text() != text]"
    done = subprocess.run([sys.executable, "-c", program], cwd=GRAFANA, capture_output=True, text=True, check=True)
    assert done.stdout == "", "run python deploy/grafana/build.py"
    assert len(BOARDS) == 7


@pytest.mark.parametrize(("where", "expr"), list(queries()))
def test_a_query_asks_for_what_is_emitted_by_labels_it_has(where, expr):
    known = {series: metric for metric in METRICS for series in series_names(metric)}
    series, labels = named_in(expr)
    assert series - known.keys() - FOREIGN.keys() == set() | (series & NOT_OURS)
    assert where.startswith("gradbus-cluster") or not series & FOREIGN.keys(), "compose has none of these exporters"
    given = {"job", "instance", "le", "alertstate"} | {label(name) for one in series & known.keys() for name in known[one].attributes}
    given |= {name for one in series & FOREIGN.keys() for name in FOREIGN[one]}
    assert labels - given <= {"error_type"} if series & NOT_OURS else labels <= given


def test_a_query_for_what_nobody_emits_is_found():
    assert named_in('sum by (le, nowhere) (rate(gradbus_nothing_total{gradbus_side="low"}[5m]))') == (
        {"gradbus_nothing_total"},
        {"le", "nowhere", "gradbus_side"},
    )


def test_every_metric_of_an_exporter_is_shown_and_its_panel_names_the_exporter():
    board = BOARDS["gradbus-cluster.json"]
    used = {variable["query"]["query"] for variable in board["templating"]["list"]}
    shown = {series for expr in used for series in named_in(expr)[0]}
    for panel in board["panels"]:
        series = {one for target in panel.get("targets", []) for one in named_in(target["expr"])[0]}
        needed = {exporter for exporter, metrics in EXPORTERS.items() if series & metrics.keys()}
        said = panel.get("description", "").partition("Needs ")[2]
        assert {exporter for exporter in EXPORTERS if exporter in said} == needed, panel["title"]
        shown |= series
    assert FOREIGN.keys() <= shown
    assert all(f"`{exporter}`" in (ROOT / "docs/kubernetes.md").read_text() for exporter in EXPORTERS)


def test_the_figure_of_keda_is_the_one_that_is_shown():
    keda = yaml.safe_load((ROOT / "deploy/kubernetes/components/keda/objects.yaml").read_text())
    asked = keda["spec"]["triggers"][0]["metadata"]
    [panel] = [panel for _, panel in PANELS if panel["title"] == "Groups that wait for samples"]
    assert asked["query"] in {target["expr"] for target in panel["targets"]}
    assert f"each {asked['threshold']}" in panel["description"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no `promtool` on the PATH; Debian has it in the package prometheus")
def test_prometheus_parses_the_queries_of_the_cluster(tmp_path):
    filled = [re.sub(r"\$__\w+", "5m", target["expr"]) for name, panel in PANELS if "cluster" in name for target in panel["targets"]]
    rules = [{"record": f"gradbus:query{number}", "expr": expr} for number, expr in enumerate(filled)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_has_what_grafana_demands(name):
    board = BOARDS[name]
    assert set(board) >= {"uid", "title", "description", "schemaVersion", "panels", "templating", "annotations", "time", "links"}
    assert board["uid"] == name.removesuffix(".json")
    assert len(board["uid"]) <= 40
    assert "id" not in board, "Grafana gives it"
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_passes_grafanas_schema(name):
    """Parsed by Grafana's typed model and written again, only fields that data sources and plugins define themselves are lost."""
    register_default_plugins()
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(BOARDS[name])))
    assert set(lost(BOARDS[name], again)) <= {"definition", "step", "titleFormat"}


def lost(given, again, key=""):
    """Paths in `given` that are missing in `again` or have another value there."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield from lost(value, again[name], name) if name in again else [name]
    elif isinstance(given, list):
        for one, other in zip(given, again, strict=True):
            yield from lost(one, other, key)
    elif given != again:
        yield key


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_in_rows_beside_each_other_and_never_over_each_other(name):
    taken = set()
    assert BOARDS[name]["panels"][0]["type"] == "row"
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    lines = {}
    for panel in BOARDS[name]["panels"]:
        lines[panel["gridPos"]["y"]] = lines.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert set(lines.values()) == {24}, "every line is full"


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=lambda one: re.sub(r"\W+", "_", one["title"]) if isinstance(one, dict) else None)
def test_a_panel_says_how_to_read_it(name, panel):
    assert panel["type"] in KINDS
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C", "D"][: len(panel["targets"])]
    uids = {source["uid"] for source in SOURCES}
    assert {target["datasource"]["uid"] for target in panel["targets"]} | {panel["datasource"]["uid"]} <= uids
    if any(target.get("exemplar") for target in panel["targets"]):
        assert all("_bucket" in target["expr"] for target in panel["targets"]), "exemplars lie on buckets"


@pytest.mark.parametrize(
    ("title", "target"),
    [(panel["title"], target) for _, panel in PANELS if panel["type"] in {"stat", "bargauge"} for target in panel["targets"]],
)
def test_a_figure_with_a_series_for_each_answer_is_asked_now_for_a_range_has_the_answers_of_an_hour_ago(title, target):
    assert target["range"] is not target["instant"]
    assert target["instant"] or "{{" not in target["legendFormat"]


def test_a_start_is_marked_though_a_process_exports_its_first_numbers_late():
    interval = int(re.search(r'OTEL_METRIC_EXPORT_INTERVAL: "(\d+)"', (ROOT / "docker-compose.yml").read_text())[1]) / 1000
    for board in BOARDS.values():
        (starts,) = [one for one in board["annotations"]["list"] if one["name"] == "Restarts"]
        assert int(re.fullmatch(r"process_uptime_seconds < (\d+)", starts["expr"])[1]) >= 3 * interval


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_that_is_used_is_there(name):
    board = BOARDS[name]
    known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval", "__range"}
    assert set(re.findall(r"\$(\w+)", json.dumps([board["panels"], board["templating"]]))) - {"__all"} <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_which_promise_it_guards_and_what_to_do(rule):
    assert rule["labels"].get("rule") in ({None} if rule["alert"] == "LearningAlarm" else {"R6", "R7", "R8"})
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"].endswith(".")
    assert f"`{rule['alert']}`" in (ROOT / "docs/observability.md").read_text()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no `promtool` on the PATH; Debian has it in the package prometheus")
def test_alerts_fire_for_what_they_say_and_for_nothing_else(tmp_path):
    written = (Path(__file__).parent / "alerts_test.yml").read_text()
    test = tmp_path / "test.yml"
    test.write_text(written.replace("ALERTS", str(ROOT / "deploy/prometheus/alerts.yml")))
    done = subprocess.run(["promtool", "test", "rules", str(test)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [rule["alert"] for rule in RULES])
def test_each_alert_is_seen_to_fire_and_to_stay_quiet(name):
    tests = yaml.safe_load((Path(__file__).parent / "alerts_test.yml").read_text())["tests"]
    asked = [bool(one["exp_alerts"]) for test in tests for one in test["alert_rule_test"] if one["alertname"] == name]
    assert set(asked) == {True, False}


def test_from_a_point_to_its_trace_from_a_trace_to_its_logs_and_back():
    by_type = {source["type"]: source for source in SOURCES}
    assert by_type["prometheus"]["jsonData"]["exemplarTraceIdDestinations"] == [{"name": "trace_id", "datasourceUid": "tempo"}]
    logs = by_type["tempo"]["jsonData"]["tracesToLogsV2"]
    assert logs["datasourceUid"] == by_type["loki"]["uid"]
    assert 'trace_id = "$${__trace.traceId}"' in logs["query"]
    back = by_type["loki"]["jsonData"]["derivedFields"][0]
    assert (back["datasourceUid"], back["matcherType"], back["matcherRegex"]) == ("tempo", "label", "trace_id")


def test_a_name_of_the_code_is_one_of_the_registry_and_each_is_used():
    """Reads the source, because a misspelt metric would be stored and never exported."""
    call = re.compile(
        r'(?:\bcount|\bset|\bset_gauge|\breplace|\bobserve_many|\bobserve)\(\s*"((?:gradbus|process|gen_ai|rpc|db|messaging)\.[\w.]+)"'
    )
    sources = [path.read_text() for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    used = {name for text in sources for name in call.findall(text)}
    known = {metric.name for metric in METRICS}
    assert used <= known
    by_wires = {
        "db.client.operation.duration",
        "messaging.client.operation.duration",
        "messaging.process.duration",
        "gradbus.wire.duration",
    }
    by_wires |= {"rpc.client.call.duration", "rpc.server.call.duration", "http.server.request.duration", "http.server.active_requests"}
    assert known - used == by_wires
