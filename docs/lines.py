"""Line charts as SVG, for the pages of the documentation."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 760
_PANEL = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 34, 36


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel.

    Attributes:
        label: Stands behind its last point.
        points: (x, y), x rising.
        color: As SVG has it.
        is_dashed: Whether it is drawn as a bound rather than a measurement, without dots.
    """

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    is_dashed: bool = False


def picture(panels: Sequence[tuple[str, Sequence[Line]]], *, x_label: str) -> str:
    """Panels below each other; x doubles from mark to mark, y begins at 0.

    Args:
        panels: Title and lines of each; x of all points is positive.
        x_label: What x is.
    """
    parts = []
    for index, (title, lines) in enumerate(panels):
        parts += _panel(index * _PANEL, title, lines, x_label)
    height = len(panels) * _PANEL + 8
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def _panel(top: int, title: str, lines: Sequence[Line], x_label: str) -> list[str]:
    points = [point for line in lines for point in line.points]
    xs = sorted({x for x, _ in points})
    first, last = math.log2(xs[0]), math.log2(xs[-1])
    step = _tick(max(y for _, y in points))
    most = step * math.ceil(max(y for _, y in points) / step)
    bottom = top + _PANEL - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log2(x) - first) / (last - first or 1)
        across = _LEFT + share * (WIDTH - _LEFT - _RIGHT)
        return round(across, 1), round(bottom - y / most * (bottom - top - _TOP), 1)

    parts = [_text(0, top + 20, title, weight="bold")]
    for index in range(round(most / step) + 1):
        left, y = place(xs[0], index * step)
        right, _ = place(xs[-1], 0)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#e3e8ec"/>')
        parts.append(_text(left - 8, y + 4, f"{index * step:g}", anchor="end"))
    parts += [_text(place(x, 0)[0], bottom + 18, f"{x:g}", anchor="middle") for x in xs]
    parts.append(_text(place(xs[-1], 0)[0] + 24, bottom + 18, x_label))
    ends = _apart([place(*line.points[-1])[1] for line in lines])
    for line, end in zip(lines, ends, strict=True):
        placed = [place(*point) for point in line.points]
        dashes = ' stroke-dasharray="6 4"' if line.is_dashed else ""
        path = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.color}" stroke-width="2"{dashes}/>')
        if not line.is_dashed:
            parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{line.color}"/>' for x, y in placed]
        parts.append(_text(placed[-1][0] + 10, end + 4, f"{line.label} {line.points[-1][1]:.3g}", color=line.color))
    return parts


def _tick(most: float) -> float:
    """Between marks on y: 1, 2 or 5 times a power of ten, so that there are three to seven."""
    power = 10 ** math.floor(math.log10(most / 3))
    return float(next(step * power for step in (5, 2, 1) if step * power <= most / 3))


def _apart(heights: Sequence[float]) -> list[float]:
    """The same heights, pushed down where a label would lie on another."""
    placed = list(heights)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for above, below in itertools.pairwise(order):
        placed[below] = max(placed[below], placed[above] + 15)
    return placed


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", color: str = "#1f2933"
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{color}"'
    return f'<text x="{x}" y="{y}" {style}>{html.escape(text)}</text>'
