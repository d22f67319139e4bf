"""Writes the generated parts of the docs: `make docs`. A test fails while a page differs from what this writes.

A part stands between `<!-- generated: NAME -->` and `<!-- /generated -->`; NAME is a key of `PARTS`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from docs import agents_chart, dashboard, economy_chart, step_chart
from docs.pages import ROOT, pages
from docs.tables_cli import cli_reference, exit_code_table
from docs.tables_clients import clients_table
from docs.tables_gateway import error_table, metric_table, settings_table
from docs.tables_gpu import gpu
from docs.tables_library import library_table
from docs.tables_programs import operation_table
from docs.tables_project import catalog_table, make_table
from docs.tables_quality import quality, quantized
from docs.tables_results import results
from docs.tables_suites import suites

PARTS: Mapping[str, Callable[[], str]] = {
    "catalog": catalog_table,
    "cli": cli_reference,
    "clients": clients_table,
    "errors": error_table,
    "exits": exit_code_table,
    "gpu": gpu,
    "library": library_table,
    "make": make_table,
    "metrics": metric_table,
    "operations": operation_table,
    "quality": quality,
    "quantized": quantized,
    "results": results,
    "settings": settings_table,
    "suites": suites,
}

_REGION = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- /generated -->)", re.DOTALL)


def regenerate(text: str) -> str:
    """The page with each generated part written anew.

    Raises:
        KeyError: A part has a name that nothing generates.
    """

    def write(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match['name']]().strip()}\n\n{match[4]}"

    return _REGION.sub(write, text)


def generated_parts(text: str) -> Iterable[str]:
    """Names of the generated parts of a page."""
    return (match["name"] for match in _REGION.finditer(text))


def main(paths: Sequence[Path]) -> int:
    """Rewrites pages, the dashboard and the charts in place and says which changed."""
    drawn = {
        dashboard.PATH: dashboard.dashboard(),
        agents_chart.PATH: agents_chart.chart() or "",
        economy_chart.PATH: economy_chart.chart() or "",
        step_chart.PATH: step_chart.chart() or "",
    }
    for path in [*paths, *drawn]:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = drawn[path] if path in drawn else regenerate(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(pages()))
