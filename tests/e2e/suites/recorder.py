"""A pytest plugin that writes down what became of each test; it and its neighbours are loaded into others' suites."""

from __future__ import annotations

import json
import os

import pytest

MAX_REASON_CHARS = 300


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds a line to the file that the environment names, once a test."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    entry = {"test": report.nodeid, "outcome": report.outcome, "why": _why(report)}
    with open(os.environ["SUITE_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _why(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])[:MAX_REASON_CHARS]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)[:MAX_REASON_CHARS]
