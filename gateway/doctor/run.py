"""The whole examination, and how it is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gateway.doctor.choices import examine_choices, examine_devices, examine_store
from gateway.doctor.machine import examine_machine
from gateway.doctor.native import examine_native
from gateway.doctor.report import Report
from gateway.doctor.software import examine_software


def examine(home: Path) -> Report:
    """Looks at everything; takes some seconds where kernel libraries are to be loaded."""
    devices = Report()
    has_cuda = examine_devices(devices)
    report = Report()
    examine_software(report, home, has_cuda=has_cuda)
    examine_machine(report)
    report.sections += devices.sections
    report.findings += devices.findings
    examine_native(report, has_cuda=has_cuda)
    examine_choices(report)
    examine_store(report, home)
    return report


def main(*, home: Path, as_json: bool) -> int:
    """Examines and prints. Returns 0 if a model can be served here, else 1."""
    report = examine(home)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    elif sys.stdout.isatty():
        _print_pretty(report)
    else:
        print(report.as_text())
    return 0 if report.is_healthy else 1


def _print_pretty(report: Report) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        print(report.as_text())
        return
    console = Console(highlight=False)
    for section in report.sections:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in section.facts.items():
            table.add_row(f"  {name}", Text(value))
        console.print(Text(section.title, style="bold"))
        console.print(table)
        console.print()
    for finding in report.findings:
        style = "bold red" if finding.severity == "problem" else "yellow"
        console.print(Text.assemble((finding.severity, style), f"  {finding.subject}: {finding.meaning}"))
    if report.is_healthy:
        console.print("[bold green]everything needed to serve is here[/]")
    else:
        console.print("[bold red]serving will not work like this[/]")
