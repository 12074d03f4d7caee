"""Builds dashboards: rows of panels, laid out automatically on Grafana's 24 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROMETHEUS = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24
_SCHEMA = 41  # Grafana 12; later versions migrate it when they load it


@dataclass(frozen=True)
class Query:
    """A PromQL query and its legend. `exemplars`: points link to traces. `now`: an instant query at the end of the time range, for metrics
    with one series for each answer: a range query would show every answer that was true at some time in the range."""

    expr: str
    legend: str = ""
    exemplars: bool = False
    heat: bool = False
    now: bool = False

    def target(self, ref: str) -> dict[str, Any]:
        """The JSON of the query in a panel."""
        target = {"refId": ref, "datasource": PROMETHEUS, "expr": self.expr, "legendFormat": self.legend or "__auto"}
        target |= {"range": not self.now, "instant": self.now}
        return target | ({"exemplar": True} if self.exemplars else {}) | ({"format": "heatmap"} if self.heat else {})


def quantiles_of(histogram: str, high: float = 0.95, name: str = "95 %") -> list[Query]:
    """Median and a high quantile of a histogram; the median's points link to traces."""
    rate = f"sum by (le) (rate({histogram}_bucket[$__rate_interval]))"
    return [
        Query(f"histogram_quantile({share}, {rate})", legend, exemplars=share == 0.5) for share, legend in ((0.5, "median"), (high, name))
    ]


@dataclass(frozen=True)
class Panel:
    """One panel; its description says how to read it and what to do."""

    title: str
    description: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    custom: Mapping[str, Any] = field(default_factory=dict)
    """Of a graph's lines: `stacking`, `lineInterpolation`, ..."""
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of its fields: `min`, `max`, `thresholds`, `mappings`."""
    overrides: Sequence[Mapping[str, Any]] = ()

    def as_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """The JSON that Grafana reads."""
        looks = dict(_LINES if self.kind == "timeseries" else {}) | dict(self.custom)
        defaults = {"unit": self.unit, "color": {"mode": "palette-classic"}, **self.defaults} | ({"custom": looks} if looks else {})
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": PROMETHEUS,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [query.target(chr(ord("A") + at)) for at, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "options": _OPTIONS.get(self.kind, {}) | dict(self.options),
        }


_LINES = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": 60_000}
_LEGEND = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": _LEGEND,
    "barchart": _LEGEND | {"xTickLabelSpacing": 0, "showValue": "never", "stacking": "none"},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "graphMode": "area", "textMode": "auto"},
    "bargauge": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "horizontal"},
    "heatmap": {
        "calculate": False,
        "yAxis": {"axisPlacement": "left", "unit": "short"},
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
        "legend": {"show": False},
    },
    "table": {"cellHeight": "sm", "showHeader": True},
}


@dataclass(frozen=True)
class Row:
    """A heading and its panels, left to right; panels without room move to the next line."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A variable at the top of a dashboard; its values are those of a label."""

    name: str
    label: str
    values: str
    several: bool = True

    def as_json(self) -> dict[str, Any]:
        """The JSON that Grafana reads; the newest run comes first, because run ids sort by time."""
        chosen = {"current": {"text": "All", "value": "$__all"}, "includeAll": True, "multi": True} if self.several else {}
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": PROMETHEUS,
            "definition": self.values,
            "query": {"query": self.values, "refId": "A"},
            "refresh": 2,
            "sort": 1 if self.several else 2,
            "multi": False,
            "includeAll": False,
        } | chosen


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[Row]
    annotations: Sequence[Mapping[str, Any]] = ()

    def as_json(self) -> dict[str, Any]:
        """The JSON file that Grafana reads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["gradbus"],
            "schemaVersion": _SCHEMA,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "10s",
            "templating": {"list": [variable.as_json() for variable in self.variables]},
            "annotations": {"list": list(self.annotations)},
            "links": [_LINKS],
            "panels": list(_laid_out(self.rows)),
        }


_LINKS = {
    "type": "dashboards",
    "title": "Gradbus",
    "tags": ["gradbus"],
    "asDropdown": False,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "",
    "url": "",
}


def _laid_out(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number = y = 0
    for row in rows:
        number += 1
        position = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": position, "panels": []}
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, tallest = y + tallest, 0, 0
            number += 1
            yield panel.as_json(number, x, y)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
