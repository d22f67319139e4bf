"""What tenants cost, measured on very little."""

from __future__ import annotations

import json
from pathlib import Path

from loadtests.quota import main


def test_admission_and_reports_are_measured_on_a_server_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "quota.json"
    arguments = ["--requests", "20", "--engines", "2", "--tenants", "3", "--beats", "2", "--json", str(file)]
    assert main(arguments) == 0
    told = json.loads(file.read_text())
    assert 0 < told["admission"]["p50_ms"] <= told["admission"]["p99_ms"]
    assert told["core_share"] >= 0
