"""Tests of others, run by a plugin of ours: what became of each is written down, with the reason."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.suites.run import UNEXPLAINED, run, summary
from tests.e2e.suites.suites import SUITES, Suite

FOREIGN = """
import os, pytest

def test_that_passes():
    assert os.environ["PORT"] == "1234"

def test_that_fails():
    assert "__verbose" in {}

def test_that_nobody_knows():
    raise ValueError("what")

@pytest.mark.skip(reason="later")
def test_that_is_skipped():
    pass
"""


def test_results_are_counted_by_file_and_failures_by_reason(tmp_path: Path) -> None:
    (tmp_path / "test_foreign.py").write_text(FOREIGN, encoding="utf-8")
    suite = Suite(
        directory=".", files=("test_foreign.py",), plugin="llama_plugin", environment={"PORT": "{port}"}, reasons={}
    )
    results = run(suite, tmp_path, "http://127.0.0.1:1234")
    assert {one["test"].partition("::")[2]: one["outcome"] for one in results} == {
        "test_that_passes": "passed",
        "test_that_fails": "failed",
        "test_that_nobody_knows": "failed",
        "test_that_is_skipped": "skipped",
    }
    found = summary("llama.cpp", results)
    assert found["files"] == {"test_foreign.py": {"passed": 1, "failed": 2, "skipped": 1}}
    assert found["reasons"] == {
        SUITES["llama.cpp"].reasons["__verbose"]: ["test_foreign::test_that_fails"],
        UNEXPLAINED: ["test_foreign::test_that_nobody_knows"],
    }
