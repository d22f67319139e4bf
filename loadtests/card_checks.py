"""Tests as a part of `loadtests.card`: what each came to is in the file as soon as it has run.

python -m loadtests.card_checks --json checks.json -- tests/engine/cuda -n 8
python -m loadtests.card_checks --json memory.json --sanitizer memcheck -- tests/engine/cuda/test_gemv.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtests.results import save
from loadtests.tables import Table

_TEXT = 6000
"""Characters kept of what a failed test says, from its end."""

_SLOWEST = 15

_EVERY_S = 2.0
"""How often the file is written while tests run."""


SANITIZER = "compute-sanitizer"
"""NVIDIA's checker of memory accesses and races, part of CUDA's toolkit."""

SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")

FOUND_BY_SANITIZER = 86
"""Exit code if it found something, though all tests passed."""


class Outcomes:
    """A plugin of pytest that keeps what tests come to in a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts: Counter[str] = Counter()
        self._failures: list[dict[str, str]] = []
        self._skips: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._started_s = time.monotonic()
        self._saved_s = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of a test's set-up, call and clean-up, each."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._counts["failed"] += 1
            self._failures.append({"test": report.nodeid, "when": report.when, "text": report.longreprtext[-_TEXT:]})
        elif report.skipped:
            self._counts["skipped"] += 1
            self._skips[_reason(report)] += 1
        elif report.when == "call":
            self._counts["passed"] += 1
        if time.monotonic() - self._saved_s > _EVERY_S:
            self.save(ended=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Of a file that cannot be read."""
        if report.failed:
            self._counts["failed"] += 1
            text = report.longreprtext[-_TEXT:]
            self._failures.append({"test": report.nodeid, "when": "collect", "text": text})

    def save(self, *, ended: bool) -> None:
        """Writes the file."""
        self._saved_s = time.monotonic()
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
        results: dict[str, Any] = {
            "ended": ended,
            "seconds": self._saved_s - self._started_s,
            "passed": self._counts["passed"],
            "failed": self._counts["failed"],
            "skipped": self._counts["skipped"],
            "failures": self._failures,
            "skips": dict(self._skips.most_common()),
            "slowest": dict(slowest),
        }
        table = Table(title="Tests", headers=["what", "number"])
        for name in ("passed", "failed", "skipped"):
            table.add(name, results[name])
        save([table], results, self._path)


def _sanitized(options: argparse.Namespace) -> int:
    """The same in a process that the sanitizer watches; its findings go into the file too."""
    report = options.json.with_suffix(".log")
    report.unlink(missing_ok=True)
    watched = [SANITIZER, "--tool", options.sanitizer, "--error-exitcode", str(FOUND_BY_SANITIZER)]
    tests = [sys.executable, "-m", __spec__.name, "--json", str(options.json), "--", *options.arguments]
    # What torch keeps for later it would take for memory in use.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        command = [*watched, "--log-file", str(report), *tests]
        code = subprocess.run(command, env=environment, check=False).returncode
    except FileNotFoundError:
        print(f"{SANITIZER} is not on the PATH", file=sys.stderr)
        return 2
    said = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    counts = [int(count) for count in re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)]
    results = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    results["sanitizer"] = {
        "tool": options.sanitizer,
        "found": sum(counts) if counts else None,  # None: it did not get as far as to say
        "said": said[-_TEXT:],
    }
    options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return code if counts or code else FOUND_BY_SANITIZER


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else report.longreprtext[-200:]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns what pytest does."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.card_checks", description="Run tests, keeping outcomes.")
    parser.add_argument("--json", type=Path, required=True, help="write what tests come to to this file")
    parser.add_argument(
        "--sanitizer", choices=SANITIZER_TOOLS, help=f"run them under {SANITIZER}, with this tool of it"
    )
    parser.add_argument("arguments", nargs="*", help="of pytest, behind --")
    options = parser.parse_args(argv)
    if options.sanitizer is not None:
        return _sanitized(options)
    outcomes = Outcomes(options.json)
    outcomes.save(ended=False)
    arguments = ["-p", "no:cacheprovider", "--tb=short", *options.arguments]
    code = pytest.main(arguments, plugins=[outcomes])
    outcomes.save(ended=code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
