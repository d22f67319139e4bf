"""The Grafana dashboard, `docs/grafana/wye.json`: rows of panels over the metrics of `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from docs.pages import ROOT

PATH = ROOT / "docs" / "grafana" / "wye.json"

WIDTH = 24
"""Columns of Grafana's grid."""

HEIGHT = 8
"""Its rows that a panel takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One graph over time.

    Attributes:
        title: What it shows.
        unit: Grafana's name of the unit.
        lines: Expression of each line by its legend; `{{label}}` in a legend is a label's value.
        stacks: Whether the lines are parts of a whole.
    """

    title: str
    unit: str
    lines: dict[str, str] = field(default_factory=dict)
    stacks: bool = False


def _quantiles(metric: str) -> dict[str, str]:
    return {
        f"p{share}": f"histogram_quantile(0.{share}, sum by (le) (rate({metric}_bucket[$__rate_interval])))"
        for share in (50, 95, 99)
    }


ROWS: dict[str, Sequence[Panel]] = {
    "Requests": (
        Panel(
            title="Answers by status",
            unit="reqps",
            lines={"{{status}}": "sum by (status) (rate(wye_http_requests_total[$__rate_interval]))"},
            stacks=True,
        ),
        Panel(title="In flight", unit="short", lines={"requests": "sum(wye_gateway_active_requests)"}),
        Panel(title="Time to first token", unit="s", lines=_quantiles("wye_time_to_first_token_seconds")),
        Panel(title="Time per output token", unit="s", lines=_quantiles("wye_time_per_output_token_seconds")),
        Panel(title="Whole generations", unit="s", lines=_quantiles("wye_generation_seconds")),
        Panel(
            title="Ends of generations",
            unit="cps",
            lines={"{{reason}}": "sum by (reason) (rate(wye_finished_total[$__rate_interval]))"},
            stacks=True,
        ),
    ),
    "Engine": (
        Panel(
            title="Sequences",
            unit="short",
            lines={"running": "max(wye_engine_running_sequences)", "waiting": "max(wye_engine_waiting_sequences)"},
        ),
        Panel(
            title="Tokens computed",
            unit="cps",
            lines={
                "prompt": "max(rate(wye_engine_prefill_tokens_total[$__rate_interval]))",
                "output": "max(rate(wye_engine_decode_tokens_total[$__rate_interval]))",
            },
        ),
        Panel(title="Time of a step", unit="s", lines={"last step": "max(wye_engine_step_seconds)"}),
        Panel(
            title="Preemptions",
            unit="cps",
            lines={"sequences": "max(rate(wye_engine_preemptions_total[$__rate_interval]))"},
        ),
    ),
    "KV": (
        Panel(
            title="Pages",
            unit="short",
            lines={
                "held": "max(wye_kv_used_pages)",
                "cached": "max(wye_kv_cached_pages)",
                "free": "max(wye_kv_pages) - max(wye_kv_used_pages) - max(wye_kv_cached_pages)",
            },
            stacks=True,
        ),
        Panel(
            title="Prompt tokens from the prefix cache",
            unit="percentunit",
            lines={
                "share": "max(rate(wye_prefix_cache_hit_tokens_total[$__rate_interval]))"
                " / max(rate(wye_prefix_cache_query_tokens_total[$__rate_interval]))"
            },
        ),
    ),
}


def dashboard() -> str:
    """The dashboard as JSON that Grafana imports or is provisioned with."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []})
        top += 1
        across = 3 if len(row) % 3 == 0 else 2
        for number, panel in enumerate(row):
            width = WIDTH // across
            place = {"x": number % across * width, "y": top + number // across * HEIGHT, "w": width, "h": HEIGHT}
            panels.append(_panel(panel, place))
        top += -(-len(row) // across) * HEIGHT
    for number, one in enumerate(panels, start=1):
        one["id"] = number
    variable = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    board = {
        "uid": "wye",
        "title": "Wye",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


def expressions() -> list[str]:
    """What all panels ask Prometheus."""
    return [expression for row in ROWS.values() for panel in row for expression in panel.lines.values()]


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    drawn: dict[str, Any] = {"drawStyle": "line", "fillOpacity": 25 if panel.stacks else 5, "showPoints": "never"}
    if panel.stacks:
        drawn["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": drawn}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": expression, "legendFormat": legend}
            for number, (legend, expression) in enumerate(panel.lines.items())
        ],
    }
