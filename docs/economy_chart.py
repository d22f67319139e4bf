"""The chart of the KV economy, `docs/economy.svg`, drawn from `loadtests/results/economy.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from docs.bars import Bar, picture
from docs.pages import ROOT

PATH = ROOT / "docs" / "economy.svg"
RESULTS = ROOT / "loadtests" / "results" / "economy.json"

LABEL_WIDTH = 250
_ALL = "all"
_OURS, _OTHER, _TRUE = "#2f6f4f", "#b8c4ce", "#7d93a8"
_OWN = "least expected saving"


def chart() -> str | None:
    """The picture; None as long as nothing was measured."""
    if not RESULTS.exists():
        return None
    return draw(json.loads(RESULTS.read_text(encoding="utf-8")))


def draw(results: Mapping[str, Any]) -> str:
    """Tokens computed again: of all tenants by who gives way first, then of each under our order and under LRU."""
    rows = results["trace"]
    total = [(row["policy"], row["percent_recomputed"], _color(row["policy"])) for row in rows if row["tenant"] == _ALL]
    groups: list[tuple[str, list[Bar]]] = [
        ("all tenants: computed again of what is used again, %, by who gives way", total)
    ]
    for tenant in dict.fromkeys(row["tenant"] for row in rows if row["tenant"] != _ALL):
        bars = [
            (row["policy"], row["percent_recomputed"], _color(row["policy"]))
            for row in rows
            if row["tenant"] == tenant and "," not in row["policy"]
        ]
        groups.append((f"{tenant}: computed again, %", bars))
    paid = [
        ("as it claims", row["paid_gib_s"], _OURS)
        if row["policy"] == _OWN
        else ("when it says the truth", row["paid_gib_s"], _TRUE)
        for row in rows
        if row["tenant"] == "over-claiming" and row["policy"].startswith(_OWN)
    ]
    groups.append(("the over-claiming tenant: KV that it pays for, GiB seconds", paid))
    return picture(
        [(title, [(_short(label), value, color) for label, value, color in bars]) for title, bars in groups],
        label_width=LABEL_WIDTH,
    )


def _short(label: str) -> str:
    return label.replace("least expected saving, the over-claiming one says the truth", "ours, all say the truth")


def _color(policy: str) -> str:
    if policy == _OWN:
        return _OURS
    return _TRUE if policy.startswith(_OWN) else _OTHER
