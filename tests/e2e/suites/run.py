"""Runs tests of other projects, out of a checkout of theirs, against a running server.

    python -m tests.e2e.suites.run openai-python --checkout DIR --url http://127.0.0.1:8000 --out result.json

The server must answer to the names of models that those tests use (`wye serve --served-model-name`, many times).
`docs/compatibility.md` shows results; `docs/suites/*.json` holds them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.suites.suites import SUITES, Suite

HERE = Path(__file__).parent
UNEXPLAINED = "Not looked at."


def run(suite: Suite, checkout: Path, url: str, *, model: str = "", timeout_s: int = 60) -> list[dict[str, str]]:
    """Runs one suite.

    Args:
        suite: Which.
        checkout: Of the project.
        url: Of the server, without `/v1`.
        model: Path of the served model, for tests that tokenise.
        timeout_s: Most seconds of one test.

    Returns:
        For each test its name, outcome and what it said.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.jsonl"
        report.touch()
        filled = {"url": url, "port": str(urlsplit(url).port or 80)}
        environment = {
            **os.environ,
            "SUITE_URL": url,
            "SUITE_REPORT": str(report),
            "SUITE_MODEL": model,
            "PYTHONPATH": os.pathsep.join([str(HERE), ".", os.environ.get("PYTHONPATH", "")]),
            **{name: value.format(**filled) for name, value in suite.environment.items()},
        }
        plugins = ["-p", "recorder", "-p", suite.plugin, "-p", "no:cacheprovider"]
        options = ["-c", suite.config, "--rootdir", ".", "--timeout", str(timeout_s), "-q", "--tb=no", *suite.options]
        command = [sys.executable, "-m", "pytest", *plugins, *options, *suite.files]
        subprocess.run(command, cwd=checkout / suite.directory, env=environment, check=False)
        return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


def summary(name: str, results: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Counts by file, and failures by reason."""
    files: dict[str, dict[str, int]] = {}
    reasons: dict[str, list[str]] = {}
    for one in results:
        file, _, test = one["test"].partition("::")
        counts = files.setdefault(file, {"passed": 0, "failed": 0, "skipped": 0})
        counts[one["outcome"]] += 1
        if one["outcome"] == "failed":
            reasons.setdefault(reason_of(SUITES[name], one), []).append(f"{Path(file).stem}::{test}")
    return {"suite": name, "files": files, "reasons": {why: sorted(tests) for why, tests in sorted(reasons.items())}}


def reason_of(suite: Suite, failure: dict[str, str]) -> str:
    """Why a test cannot pass."""
    said = f"{failure['test']} {failure['why']}"
    return next((why for part, why in suite.reasons.items() if part in said), UNEXPLAINED)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="", help="path of the served model, for tests that tokenise")
    parser.add_argument("--version", default="", help="of the checkout, as it is to be shown")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    results = run(SUITES[given.suite], given.checkout, given.url.rstrip("/"), model=given.model)
    found = {**summary(given.suite, results), "version": given.version}
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for one in results:
        if one["outcome"] == "failed":
            print(one["test"], "|", reason_of(SUITES[given.suite], one), "|", one["why"].replace("\n", " ")[:200])


if __name__ == "__main__":
    main()
