"""Stacks of a sampling profiler as a flame graph: an SVG in which a frame is as wide as its share of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

from sampled_stacks import Stack

_WIDTH: Final = 1200
_ROW: Final = 17
_CHARACTER: Final = 6.4
"""Pixels that a character takes."""
_LEAST_WIDTH: Final = 2.0
"""Of a frame in pixels; narrower ones are left out, so that the file stays small."""


@dataclass
class _Frame:
    samples: float = 0.0
    within: dict[str, _Frame] = field(default_factory=dict)


def flame_graph(stacks: Mapping[Stack, float], title: str) -> str:
    """The SVG. A value of `stacks` is any weight: samples, or milliseconds."""
    root = _Frame()
    for stack, weight in stacks.items():
        frame = root
        frame.samples += weight
        for name in stack:
            frame = frame.within.setdefault(name, _Frame())
            frame.samples += weight
    drawn = list(_boxes(root, 0.0, 0, _WIDTH / max(root.samples, 1e-9)))
    height = _ROW * (2 + max((depth for depth, *_ in drawn), default=0) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="monospace" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/><text x="6" y="13">{escape(title)}</text>',
        *(_svg(*box, total=root.samples) for box in drawn),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _boxes(frame: _Frame, left: float, depth: int, scale: float) -> Iterator[tuple[int, float, float, str, float]]:
    """Depth, left edge, width, name and samples of every frame that is wide enough."""
    for name, inner in sorted(frame.within.items()):
        width = inner.samples * scale
        if width >= _LEAST_WIDTH:
            yield depth, left, width, name, inner.samples
            yield from _boxes(inner, left, depth + 1, scale)
        left += width


def _svg(depth: int, left: float, width: float, name: str, samples: float, *, total: float) -> str:
    shown = name[: int((width - 4) / _CHARACTER)]
    top = _ROW * (depth + 1.5)
    hue = sum(map(ord, name.partition(" (")[2] or name)) % 40 + 15  # frames of one file have one colour
    box = f'<rect x="{left:.1f}" y="{top}" width="{max(width - 0.5, 0.5):.1f}" height="{_ROW - 1}" fill="hsl({hue},85%,70%)"/>'
    text = f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(shown)}</text>' if len(shown) > 2 else ""
    return f"<g><title>{escape(name)}: {samples / total:.1%}</title>{box}{text}</g>"
