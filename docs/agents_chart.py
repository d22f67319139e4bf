"""The chart of agents, `docs/agents.svg`, drawn from `loadtests/results/agents.json`."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from docs.pages import ROOT

PATH = ROOT / "docs" / "agents.svg"
RESULTS = ROOT / "loadtests" / "results" / "agents.json"

WIDTH = 760
_LABEL = 190
_BAR = 18
_GAP = 6
_HEAD = 34
_COLORS: Mapping[str, str] = {"remote": "#b8c4ce", "local": "#7d93a8", "program": "#2f6f4f"}

Bar = tuple[str, float, str]
"""Label, value, color."""


def chart() -> str | None:
    """The picture; None as long as nothing was measured."""
    if not RESULTS.exists():
        return None
    return draw(json.loads(RESULTS.read_text(encoding="utf-8")))


def draw(results: Mapping[str, Any]) -> str:
    """Completed runs per second: each workflow in its ways, then the combinations of the tailored one."""
    groups: list[tuple[str, list[Bar]]] = []
    for row in results["arms"]:
        title = f"{row['workflow']}, runs per second"
        if not groups or groups[-1][0] != title:
            groups.append((title, []))
        groups[-1][1].append((row["way"], row["runs_per_s"], _COLORS[row["way"]]))
    combined = [
        (" + ".join(name for name in ("keep", "early", "drop") if row[name]) or "none", row["runs_per_s"], "#2f6f4f")
        for row in results.get("factorial", ())
    ]
    if combined:
        groups.append(("react as a program, tailored, runs per second", combined))
    return _picture(groups)


def _picture(groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    parts, top = [], 0
    for title, bars in groups:
        most = max(value for _, value, _ in bars)
        parts.append(_text(0, top + 22, title, weight="bold"))
        top += _HEAD
        for label, value, color in bars:
            width = round((WIDTH - _LABEL - 70) * value / most, 1)
            parts.append(_text(_LABEL - 8, top + 13, label, anchor="end"))
            parts.append(f'<rect x="{_LABEL}" y="{top}" width="{width}" height="{_BAR}" fill="{color}"/>')
            parts.append(_text(_LABEL + width + 6, top + 13, f"{value:.3g}"))
            top += _BAR + _GAP
    size = f'width="{WIDTH}" height="{top + 8}" viewBox="0 0 {WIDTH} {top + 8}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    back = f'<rect width="{WIDTH}" height="{top + 8}" fill="#ffffff"/>'
    return "\n".join([head, back, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(text)}</text>'
