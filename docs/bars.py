"""Bar charts as SVG, for the pages of the documentation."""

from __future__ import annotations

import html
from collections.abc import Sequence

WIDTH = 760
_BAR = 18
_GAP = 6
_HEAD = 34

Bar = tuple[str, float, str]
"""Label, value, color."""


def picture(groups: Sequence[tuple[str, Sequence[Bar]]], *, label_width: int = 190) -> str:
    """Groups of bars below their titles; the longest bar of each group has the whole width.

    Args:
        groups: Title and bars of each, from the top.
        label_width: Room for the labels.
    """
    parts, top = [], 0
    for title, bars in groups:
        most = max((value for _, value, _ in bars), default=0.0) or 1.0
        parts.append(_text(0, top + 22, title, weight="bold"))
        top += _HEAD
        for label, value, color in bars:
            width = round((WIDTH - label_width - 70) * value / most, 1)
            parts.append(_text(label_width - 8, top + 13, label, anchor="end"))
            parts.append(f'<rect x="{label_width}" y="{top}" width="{width}" height="{_BAR}" fill="{color}"/>')
            parts.append(_text(label_width + width + 6, top + 13, f"{value:.3g}"))
            top += _BAR + _GAP
    size = f'width="{WIDTH}" height="{top + 8}" viewBox="0 0 {WIDTH} {top + 8}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    back = f'<rect width="{WIDTH}" height="{top + 8}" fill="#ffffff"/>'
    return "\n".join([head, back, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(text)}</text>'
