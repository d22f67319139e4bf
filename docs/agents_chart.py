"""The chart of agents, `docs/agents.svg`, drawn from `loadtests/results/agents.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from docs.bars import Bar, picture
from docs.pages import ROOT

PATH = ROOT / "docs" / "agents.svg"
RESULTS = ROOT / "loadtests" / "results" / "agents.json"

_COLORS: Mapping[str, str] = {"remote": "#b8c4ce", "local": "#7d93a8", "program": "#2f6f4f"}


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
    return picture(groups)
