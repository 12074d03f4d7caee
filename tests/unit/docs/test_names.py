"""Names in the documents exist in the code: settings, log events, metrics, and the files that pages point at."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("services/*/README.md"))]
SOURCES = ("libs", "kernels", "services", "deploy", "tests", "examples", "benchmarks", "loadtests")
FOLDERS = "|".join(SOURCES)
GROUPS = ("broadcast", "connections", "limit", "quota", "sglang")
VARIABLE = re.compile(r"`(GRADBUS_[A-Z_]+[A-Z])[=`]")
PATH = re.compile(rf"`((?:{FOLDERS}|proto|docs)/[\w./-]+\w)`")


@cache
def source() -> str:
    """All code, and the files that configure containers."""
    files = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py")) if ".venv" not in path.parts]
    return "\n".join(path.read_text() for path in [*files, ROOT / "docker-compose.yml"])


@cache
def fields() -> frozenset[str]:
    """Names assigned with a type, as settings are."""
    return frozenset(re.findall(r"^\s+(\w+): ", source(), re.MULTILINE))


def exists(variable: str) -> bool:
    """Whether a `GRADBUS_*` variable is spelled out in the code or is the name of a setting; some groups of settings have a prefix."""
    name = variable.removeprefix("GRADBUS_").lower()
    return variable in source() or bool({name, *(name.removeprefix(f"{group}_") for group in GROUPS)} & fields())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_setting_that_a_page_names_exists(page):
    assert [name for name in VARIABLE.findall(page.read_text()) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_file_that_a_page_names_exists(page):
    assert [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


def test_the_page_on_extending_names_files():
    assert len(PATH.findall((ROOT / "docs/extending.md").read_text())) > 40


def test_a_log_event_that_a_page_names_is_logged():
    events = {name for page in PAGES for name in re.findall(r"(?:logs|event|logged \() ?`(\w+_\w+)`", page.read_text())}
    assert len(events) > 5
    assert sorted(name for name in events if f'"{name}"' not in source()) == []


def test_a_metric_that_a_page_names_is_in_the_registry():
    registry = "\n".join(path.read_text() for path in (ROOT / "libs/gradbus/telemetry/registry").glob("*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(gradbus\.\w+(?:\.\w+)*)`", page.read_text())}
    modules = {".".join(path.relative_to(ROOT / "libs").with_suffix("").parts) for path in (ROOT / "libs/gradbus").rglob("*")}
    metrics = {name for name in named if not {name, name.rpartition(".")[0]} & modules}
    assert len(metrics) > 5
    assert sorted(name for name in metrics if f'"{name}"' not in registry) == []


def test_a_panel_that_the_page_on_observability_names_is_on_a_dashboard():
    dashboards = "\n".join(path.read_text() for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"))
    named = set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", (ROOT / "docs/observability.md").read_text()))
    assert len(named) > 5
    assert sorted(name for name in named if f'"title": "{name}"' not in dashboards) == []
