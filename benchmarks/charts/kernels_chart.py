"""Draws seconds and memory of every implementation relative to naive torch as bars, in SVG."""

from __future__ import annotations

import math
from html import escape
from itertools import groupby

from operators.rows import Row

from charts.curves import COLOURS

WIDTH, LABEL, LINE = 930, 500, 15
PANEL = (WIDTH - LABEL - 40) / 2


def chart(rows: list[Row]) -> str:
    """One line for each implementation; a bar beyond the edge (twice naive's) is cut and labelled with its value."""
    lines = list(_lines(rows))
    height = 60 + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *[_head(panel, title, height) for panel, title in enumerate(("seconds / naive", "extra memory / naive"))],
    ]
    for number, (label, shares) in enumerate(lines):
        y = 50 + LINE * number
        parts.append(f'<text x="{LABEL - 8}" y="{y + 9}" text-anchor="end">{escape(label)}</text>')
        parts += [_bar(panel, share, y) for panel, share in enumerate(shares) if share is not None]
    return "\n".join([*parts, "</svg>\n"])


def _lines(rows: list[Row]) -> list[tuple[str, tuple[float | None, float | None]]]:
    found = []
    for _, group in groupby(rows, key=lambda row: (row.operator, row.shape, row.dtype)):
        same = list(group)
        naive = next((row for row in same if row.implementation == "naive"), None)
        for row in same:
            if naive is not None and row is not naive:
                label = f"{row.operator} {row.shape} {row.dtype} {row.implementation}"
                found.append((label, (_share(row.seconds, naive.seconds), _share(row.extra_bytes, naive.extra_bytes))))
    return found


def _share(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole and math.isfinite(value / whole) else None


def _left(panel: int) -> float:
    return LABEL + panel * (PANEL + 20)


def _head(panel: int, title: str, height: int) -> str:
    middle = _left(panel) + PANEL / 2
    line = f'<line x1="{middle}" x2="{middle}" y1="42" y2="{height - 8}" stroke="#666" stroke-dasharray="5 4"/>'
    return f'<text x="{middle}" y="20" text-anchor="middle" font-size="13">{title}</text>{line}<text x="{middle - 3}" y="38">1</text>'


def _bar(panel: int, share: float, y: int) -> str:
    width = min(share, 2.0) / 2 * PANEL
    bar = f'<rect x="{_left(panel)}" y="{y}" width="{width:.1f}" height="{LINE - 4}" fill="{COLOURS[panel]}" fill-opacity="0.75"/>'
    return f'{bar}<text x="{_left(panel) + min(width + 3, PANEL - 30):.1f}" y="{y + 9}">{share:.3g}</text>'
