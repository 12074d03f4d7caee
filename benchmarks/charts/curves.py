"""Draws a small line chart as SVG, without a plotting library and readable in a diff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Curve = Sequence[tuple[float, float]]
"""Points (x, y) with y >= 0."""

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 50, 110, 40, 45
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def chart(title: str, x_label: str, curves: Mapping[str, Curve], target: float | None = None, top: float = 1.0) -> str:
    """The chart's SVG; `target` is drawn as a dashed line, `top` is the y of its upper edge."""
    curves = {name: [(x, y / top) for x, y in curve] for name, curve in curves.items()}
    most = max((x for curve in curves.values() for x, _ in curve), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        *[_grid_line(fifths / 5, top) for fifths in range(6)],
        *[_x_mark(most * fifths / 5, most) for fifths in range(6)],
    ]
    if target is not None:
        parts.append(_line([(0, target / top), (most, target / top)], most, 'stroke="#666" stroke-dasharray="5 4"'))
    for n, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[n % len(COLOURS)]
        parts.append(_line(curve, most, f'stroke="{colour}" stroke-width="2"'))
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 16 * n + 12}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _position(x: float, y: float, most: float) -> tuple[float, float]:
    return LEFT + (WIDTH - LEFT - RIGHT) * x / most, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y


def _line(curve: Curve, most: float, style: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_position(*point, most) for point in curve))
    return f'<polyline fill="none" {style} points="{points}"/>'


def _grid_line(y: float, top: float) -> str:
    _, height = _position(0, y, 1)
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#ddd"/>'
    return f'{line}<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{y * top:.2g}</text>'


def _x_mark(x: float, most: float) -> str:
    position, bottom = _position(x, 0, most)
    return f'<text x="{position:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{x:.0f}</text>'
