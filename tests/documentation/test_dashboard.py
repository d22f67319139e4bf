"""The Grafana dashboard asks for metrics that there are."""

from __future__ import annotations

import json
import re

from docs import dashboard
from docs.tables_gateway import metric_table

_NAME = re.compile(r"\bwye_\w+")


def test_it_is_what_its_source_says() -> None:
    assert dashboard.PATH.read_text(encoding="utf-8") == dashboard.dashboard(), "run `make docs`"


def test_every_metric_that_it_asks_for_is_exported() -> None:
    exported = set(_NAME.findall(metric_table()))
    asked = {name for expression in dashboard.expressions() for name in _NAME.findall(expression)}
    assert {re.sub("_bucket$", "", name) for name in asked} <= exported


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard.dashboard())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= dashboard.WIDTH
        taken |= cells
