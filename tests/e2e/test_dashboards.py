"""Runs every query of the dashboards and alerts on a real Prometheus with a real run's export, and compares the registry with it."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from otlp_lab import Received

from gradbus.client import document
from gradbus.telemetry.registry import EVERY, METRICS

ROOT = Path(__file__).parents[2]
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))}
del BOARDS["gradbus-cluster"]  # its exporters run in a cluster; tests/unit/deploy/test_dashboards.py holds its queries to their table
PANELS = [(board, panel) for board in BOARDS.values() for panel in board["panels"] if panel["type"] != "row"]
RULES = ROOT / "deploy/prometheus/alerts.yml"
QUIET = {"Firing alerts", "Failed operations", "Spans and log lines dropped", "Duration of an environment's call"}
"""Panels that are empty for a run without faults. The last one: its service starts for the run, and the run is over before the first
export, 15 s later, so nothing has a rate."""
NEEDS = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no `prometheus` on the PATH; Debian has it in the package prometheus"
)
PART = "def grade(sample, item):\n    return len(set(sample['output_text'])) / 16\n"
GRADER = {
    "type": "multi",
    "graders": {
        "variety": {"type": "python", "source": PART},
        "shape": {"type": "string_check", "input": "{{ sample.output_text }}", "operation": "ilike", "reference": " "},
    },
    "calculate_output": "variety + shape",
}

CONTROLLERS = {"kl_control": {"target": 0.1}, "entropy_control": {"target": 0.2}}
CENTRED = {"name": "opd", "trust_region": "cap", "clip": [1.0, 1.0], "centering": 8}
"""With the algorithms of `run` and `played` it reports all that any reports."""


@pytest.fixture(scope="module")
def received():
    with Received() as received:
        yield received


@pytest.fixture(scope="module")
def prometheus(received, tmp_path_factory, free_port):
    """A client of Prometheus; None where it is not installed."""
    if shutil.which("prometheus") is None:
        yield None
        return
    folder = tmp_path_factory.mktemp("prometheus")
    address = f"127.0.0.1:{free_port()}"
    scrape = {"job_name": "otlp", "honor_labels": True, "static_configs": [{"targets": [received.pages]}]}
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"}
    (folder / "prometheus.yml").write_text(json.dumps({"global": every, "rule_files": [str(RULES)], "scrape_configs": [scrape]}))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address={address}", "--enable-feature=exemplar-storage"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            with httpx2.Client(base_url=f"http://{address}", timeout=10) as client:
                yield client
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def exporting(received, stack):
    """A separate stack that exports telemetry."""
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.address, "OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_METRIC_EXPORT_TIMEOUT": "2000"}
    with stack(**asked, GRADBUS_TRACE_GROUPS="1", GRADBUS_FOLDER_DELTAS="true") as state:
        yield state


@pytest.fixture(scope="module")
def run(exporting, lab_on, prometheus, spec, rows):
    """(id, start in Unix seconds) of a run with every kind of work: reward components, a KL term, a critic, evaluation, deltas."""
    body = spec(
        data={"eval": rows([{"prompt": "sun and", "answer": "sun"}])},
        reward={"grader": GRADER, "cache": True},
        schedule={"steps": 24, "max_staleness": 1},
        algorithm={"name": "ppo", "kl": 0.01, "drift": 1e-3, "nll": 0.1, "second_moment": 0.04, **CONTROLLERS},
        trainer={"critic": {}, "inner": {"epochs": 2, "stop_kl": 0.5}},
        evaluation={"every": 8, "samples": 1},
        weights={"transport": "delta"},
    )
    began = time.time()
    with lab_on(exporting) as lab:
        run_id = lab.submit(body)
        lab.ends(run_id)
        lab.samples(run_id)
        document(lab.client.versions_page(run_id))
    return run_id, began


@pytest.fixture(scope="module")
def pairs(exporting, lab_on, models, rows):
    """Id of a run on pairs, with the same ones held out."""
    train = rows([{"prompt": "sun and", "chosen": " moon", "rejected": " sun"}])
    body = {
        "name": "pairs",
        "kind": "dpo",
        "model": {"path": str(models / "llama")},
        "data": {"train": train, "eval": train},
        "schedule": {"groups_per_step": 1, "steps": 150},
    }
    with lab_on(exporting) as lab:
        run_id = lab.submit(body)
        lab.ends(run_id)
    return run_id


@pytest.fixture(scope="module")
def taught(exporting, lab_on, models, spec):
    """Id of a run that a teacher judges, too long to end between two exports."""
    body = spec(algorithm=CENTRED, schedule={"steps": 60}) | {"teacher": {"path": str(models / "llama")}}
    del body["reward"]
    with lab_on(exporting) as lab:
        run_id = lab.submit(body)
        lab.ends(run_id)
    return run_id


@pytest.fixture(scope="module")
def played(exporting, lab_on, spec):
    """Id of a run in an environment of the user's Python."""
    source = (
        "class Environment:\n    def reset(self, item, seed): ...\n    def step(self, text): return {'reward': len(text), 'done': True}\n"
    )
    body = spec(environment={"source": source, "tool_parser": "plain"}, schedule={"steps": 40}, algorithm={"name": "clip_cov"})
    del body["reward"]
    with lab_on(exporting) as lab:
        run_id = lab.submit(body)
        lab.ends(run_id)
    return run_id


@pytest.fixture(scope="module")
def offered(exporting, lab_on, spec):
    """Id of a run whose episodes no agent claims; somebody asks for a turn without the key of one."""
    body = spec(environment={"agent": "pull", "tool_parser": "plain"}, schedule={"steps": 1})
    del body["reward"]
    with lab_on(exporting) as lab:
        run_id = lab.submit(body)
        lab.until(run_id, lambda _: any("no agent has claimed" in worker["trouble"] for worker in map(document, lab.client.workers())))
        port = json.loads((exporting / "ports.json").read_text())["agent.http"]
        for _ in range(4):
            assert (
                httpx2.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"messages": []}).status_code == httpx2.codes.UNAUTHORIZED
            )
            time.sleep(0.6)  # an export between two of them, or there is no rate
        lab.cancels(run_id)
    return run_id


def gives_time(condition, seconds=60.0):
    """Waits until it is true or the time is up: exports, scrapes and rules have their own intervals."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)


def ask(prometheus, path, **parameters):
    answer = prometheus.get(f"/api/v1/{path}", params=parameters).json()
    assert answer["status"] == "success", answer
    return answer["data"]


def filled(text, run_id):
    """The query as Grafana sends it with All selected and the run's id."""
    known = {"$__rate_interval": "15s", "$__range": "60s", "$run": run_id, "$service": ".*", "$worker": ".*", "$scorer": ".*"}
    for name, value in known.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


def over(prometheus, expr, began):
    found = ask(prometheus, "query_range", query=expr, start=began, end=time.time(), step="1")["result"]
    return [value for series in found for _, value in series["values"] if value not in {"NaN", "+Inf", "-Inf"}]


def name_of(value):
    return re.sub(r"\W+", "_", value["title"]) if isinstance(value, dict) else None


@NEEDS
@pytest.mark.usefixtures("offered")
def test_every_panel_of_every_dashboard_shows_data(prometheus, run, pairs, taught, played):
    run_id, began = run
    others = {
        "gradbus_preference": pairs,
        "evaluation_loss": pairs,
        "gradbus_policy_teacher_kl": taught,
        "gradbus_policy_total_variation": taught,
        "gradbus_policy_covariance_clipped": played,
    }
    shown = [(f"{board['title']}: {panel['title']}", target["expr"]) for board, panel in PANELS for target in panel["targets"]]
    empty = {
        f"{title}: {expr}": filled(expr, next((other for metric, other in others.items() if metric in expr), run_id))
        for title, expr in shown
        if title.partition(": ")[2] not in QUIET
    }

    def all_show():
        for name in [name for name, expr in empty.items() if over(prometheus, expr, began)]:
            del empty[name]
        return not empty

    gives_time(all_show)
    assert list(empty) == []


@NEEDS
def test_every_variable_has_values(prometheus, run):
    run_id, began = run
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            inside = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            asked = {"match[]": filled(inside[1], run_id), "start": began}
            gives_time(lambda asked=asked, label=inside[2]: ask(prometheus, f"label/{label}/values", **asked))
            values = ask(prometheus, f"label/{inside[2]}/values", **asked)
            assert values, f"{board['title']}: {variable['name']}"
            if variable["name"] == "run":
                assert run_id in values


@NEEDS
def test_every_annotation_is_a_query_that_prometheus_takes(prometheus, run):
    for board in BOARDS.values():
        for annotation in board["annotations"]["list"]:
            ask(prometheus, "query", query=annotation["expr"])


@NEEDS
def test_every_alert_is_evaluated_and_a_healthy_run_raises_none(prometheus, run):
    def rules_now():
        return [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]

    gives_time(lambda: {rule["health"] for rule in rules_now()} == {"ok"})
    rules = rules_now()
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
    assert {rule["labels"]["rule"] for rule in rules if rule["name"] != "LearningAlarm"} == {"R6", "R7", "R8"}


@NEEDS
@pytest.mark.parametrize("panel", [panel for _, panel in PANELS if any(target.get("exemplar") for target in panel["targets"])], ids=name_of)
def test_points_lead_to_traces(prometheus, run, panel):
    run_id, began = run
    expr = next(filled(target["expr"], run_id) for target in panel["targets"] if target.get("exemplar"))

    def leads():
        found = ask(prometheus, "query_exemplars", query=expr, start=began, end=time.time())
        return any(re.fullmatch("[0-9a-f]{32}", one["labels"]["trace_id"]) for series in found for one in series["exemplars"])

    gives_time(leads)
    assert leads()


def test_what_a_run_emits_is_in_the_registry(received, run, pairs, taught):
    known = {metric.name: metric for metric in METRICS}
    for service, emitted in received.emitted.items():
        for name, kind, unit, attributes in emitted:
            if name.startswith("otel.sdk."):
                continue  # a metric of the SDK itself
            metric = known[name]
            assert (kind, unit) == (metric.instrument, metric.unit), name
            assert service in metric.services, f"{name} of {service}"
            assert attributes <= set(metric.attributes), f"{name} of {service}"


def lacking(received):
    """(service, metric) and (metric, attribute) pairs of the registry that were not emitted."""
    emitted = {(service, name) for service, found in received.emitted.items() for name, *_ in found}
    named = {(name, attribute) for found in received.emitted.values() for name, _, _, attributes in found for attribute in attributes}
    # Failures are rare, the web framework emits its own metrics, and the embedded stack has no certificates.
    ours = {(metric.name, name) for metric in METRICS if not metric.name.startswith("http.") for name in metric.attributes}
    pairs = {(service, metric.name) for metric in METRICS for service in metric.services}
    pairs -= {(service, "gradbus.process.certificate.remaining") for service in EVERY}
    return (pairs - emitted) | {pair for pair in ours - named if pair[1] != "error.type"}


@pytest.mark.usefixtures("offered")
def test_what_is_in_the_registry_is_emitted(received, run, pairs, taught, played):
    gives_time(lambda: not lacking(received))
    assert set(received.emitted) == set(EVERY)
    assert lacking(received) == set()


def test_a_metric_names_no_run_but_the_one_that_is_worked_on(received, run):
    """Once a run has ended its series are no longer exported, so the export does not grow with the number of runs."""
    gives_time(lambda: run[0] not in received.page())
    assert run[0] not in received.page()
