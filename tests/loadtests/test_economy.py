"""The trace on which orders of demotion are compared."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from docs import economy_chart
from loadtests.economy_trace import BOASTFUL, HONEST, SILENT, TRUTHFUL, Tenant, Trace, needed_pages

TENANTS = (HONEST, BOASTFUL, SILENT)


def recomputed(tenants: tuple[Tenant, ...], num_pages: int, policy: str) -> int:
    trace = Trace(tenants, num_pages, policy, num_sessions=40)  # type: ignore[arg-type]  # one of the three
    return trace.run().recomputed.total()


def test_where_there_is_room_for_all_nothing_is_computed_again() -> None:
    assert recomputed(TENANTS, 1 << 16, "value") == 0


def test_giving_way_by_value_computes_less_again_than_by_last_use() -> None:
    num_pages = round(needed_pages(TENANTS, num_sessions=40) / 1.5)
    by_value, by_use = (recomputed(TENANTS, num_pages, policy) for policy in ("value", "lru"))
    assert by_value <= 0.85 * by_use


def test_promising_ten_times_too_much_saves_its_tenant_nothing_of_note() -> None:
    num_pages = round(needed_pages(TENANTS, num_sessions=40) / 1.5)
    boasting = Trace(TENANTS, num_pages, "value", num_sessions=40).run().recomputed["over-claiming"]
    truthful = Trace((HONEST, TRUTHFUL, SILENT), num_pages, "value", num_sessions=40).run()
    assert boasting >= 0.9 * truthful.recomputed["over-claiming"]


def test_the_chart_has_a_bar_for_each_order_and_tenant_and_is_up_to_date() -> None:
    results = json.loads(economy_chart.RESULTS.read_text(encoding="utf-8"))
    drawn = economy_chart.draw(results)
    ElementTree.fromstring(drawn)
    for row in results["trace"]:
        if row["policy"] == "longest unused":
            assert f"{row['percent_recomputed']:.3g}<" in drawn
    assert economy_chart.PATH.read_text(encoding="utf-8") == economy_chart.chart(), "run `make docs`"
