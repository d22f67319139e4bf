"""What becomes of other projects' tests at our server, as tables: from docs/suites/*.json."""

from __future__ import annotations

import json
from typing import Any

from docs.markdown import code, table
from docs.pages import ROOT

RESULTS = ROOT / "docs" / "suites"


def suites() -> str:
    """For each suite its files with counts, and why the others do not pass."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return "\n\n".join(part for document in documents for part in _suite(document))


def _suite(document: dict[str, Any]) -> list[str]:
    files = [
        [code(file), str(counts["passed"]), str(counts["failed"]), str(counts["skipped"])]
        for file, counts in document["files"].items()
    ]
    reasons = [[why, str(len(tests)), code(tests[0])] for why, tests in document["reasons"].items()]
    return [
        f"### {document['suite']} ({document['version']})",
        table(["file", "pass", "do not", "skipped"], files),
        table(["why not", "tests", "such as"], reasons),
    ]
