"""Configuration of the collector, Prometheus, Tempo and Loki: every referenced part exists, every address is a container's."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def parsed(name):
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


COLLECTOR = parsed("otel/collector.yml")
PIPELINES = COLLECTOR["service"]["pipelines"]


def networks(name):
    return set(SERVICES[name]["networks"])


def test_each_signal_has_a_pipeline_of_parts_that_are_configured_and_every_part_is_used():
    assert set(PIPELINES) == {"traces", "traces/errors", "metrics", "logs"}
    for kind in ("receivers", "processors", "exporters"):
        assert {part for pipeline in PIPELINES.values() for part in pipeline[kind]} == set(COLLECTOR[kind])


@pytest.mark.parametrize("signal", PIPELINES)
def test_memory_is_bounded_before_anything_else_and_queues_behind(signal):
    pipeline = PIPELINES[signal]
    assert pipeline["processors"][0] == "memory_limiter"
    assert pipeline["processors"][-1] == "batch"
    for exporter in pipeline["exporters"]:
        assert COLLECTOR["exporters"][exporter]["sending_queue"]["queue_size"] <= 1000


def test_traces_with_an_error_stay_and_the_share_of_the_rest_is_a_setting():
    policies = {policy["name"]: policy for policy in COLLECTOR["processors"]["tail_sampling"]["policies"]}
    assert policies["errors"]["status_code"] == {"status_codes": ["ERROR"]}
    assert policies["rest"]["probabilistic"]["sampling_percentage"] == "${env:TRACES_PERCENT}"
    assert SERVICES["collector"]["environment"]["TRACES_PERCENT"] == "${TRACES_PERCENT:-100}"


def test_an_error_stays_however_late_it_comes_for_it_passes_by_the_decision_about_its_trace():
    beside = PIPELINES["traces/errors"]
    assert "tail_sampling" not in beside["processors"]
    assert COLLECTOR["processors"]["filter/errors"]["traces"]["span"] == ["status.code != STATUS_CODE_ERROR"], "what is true is dropped"
    assert beside["exporters"] == PIPELINES["traces"]["exporters"]
    whole = PIPELINES["traces"]["processors"]
    assert whole.index("tail_sampling") < whole.index("filter/others"), "the decision sees the errors, and each leaves once"
    assert COLLECTOR["processors"]["filter/others"]["traces"]["span"] == ["status.code == STATUS_CODE_ERROR"]


def test_tempo_takes_what_the_collector_takes():
    ours, tempos = COLLECTOR["receivers"]["otlp"], parsed("otel/tempo.yml")["distributor"]["receivers"]["otlp"]
    assert tempos["protocols"]["grpc"]["max_recv_msg_size_mib"] >= ours["protocols"]["grpc"]["max_recv_msg_size_mib"]


def test_what_leaves_the_collector_goes_to_containers_that_it_reaches():
    for exporter in COLLECTOR["exporters"].values():
        host = urlsplit(exporter["endpoint"] if "//" in exporter["endpoint"] else f"//{exporter['endpoint']}").hostname
        assert networks(host) & networks("collector")
    for target in parsed("prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]:
        host, _, port = target.partition(":")
        assert networks(host) & networks("prometheus")
        assert int(port) == COLLECTOR["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]["port"]


def test_grafana_asks_containers_at_the_ports_they_listen_on():
    ports = {"tempo": parsed("otel/tempo.yml")["server"]["http_listen_port"], "loki": parsed("otel/loki.yml")["server"]["http_listen_port"]}
    for source in parsed("grafana/provisioning/datasources/gradbus.yml")["datasources"]:
        url = urlsplit(source["url"])
        assert networks(url.hostname) & networks("grafana")
        assert url.port == ports.get(url.hostname, 9090)


@pytest.mark.parametrize("name", ["tempo", "loki"])
def test_whoever_waits_for_the_stack_waits_until_traces_and_lines_are_taken(name):
    port = parsed(f"otel/{name}.yml")["server"]["http_listen_port"]
    assert SERVICES[name]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{port}/ready"


def test_dashboards_are_mounted_where_grafana_looks_for_them():
    path = parsed("grafana/provisioning/dashboards/gradbus.yml")["providers"][0]["options"]["path"]
    assert f"./deploy/grafana/dashboards:{path}:ro" in SERVICES["grafana"]["volumes"]


@pytest.mark.parametrize("name", ["tempo", "loki", "prometheus", "grafana"])
def test_what_is_kept_is_kept_on_the_servers_own_volume(name):
    mounts = [mount for mount in SERVICES[name]["volumes"] if isinstance(mount, dict)]
    assert [(mount["source"], mount["target"]) for mount in mounts] == [(name, "/var/lib/gradbus")]
    if name in {"tempo", "loki"}:
        folders = re.findall(r"(?<=: )/var/[\w/-]+", (ROOT / f"deploy/otel/{name}.yml").read_text())
        assert folders
        assert all(folder.startswith("/var/lib/gradbus") for folder in folders)


def test_a_series_that_is_not_pushed_any_more_is_forgotten_within_four_exports():
    (lookback,) = [word.partition("=")[2] for word in SERVICES["prometheus"]["command"] if word.startswith("--query.lookback-delta")]
    assert lookback == f"{4 * int(SERVICES['trainer']['environment']['OTEL_METRIC_EXPORT_INTERVAL']) // 60_000}m"


def test_services_reach_the_collector_and_nothing_behind_it():
    assert "internal" in networks("collector")
    assert not any("internal" in networks(name) for name in ("prometheus", "tempo", "loki", "grafana"))
