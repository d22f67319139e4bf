"""Tests under NVIDIA's sanitizer: what it finds is in the file, and no clean run is one that it did not watch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loadtests import card_checks
from loadtests.card_numbers import checks

PASSES = "tests/loadtests/test_tables.py"


def sanitizer(directory: Path, said: str, code: int) -> None:
    """A program of its name that runs what it is given, and says and returns what it is told to."""
    script = directory / card_checks.SANITIZER
    script.write_text(
        "#!/bin/bash\n"
        'while [ "${1#--}" != "$1" ]; do [ "$1" = --log-file ] && log=$2; shift 2; done\n'
        f'"$@" >/dev/null || exit $?\nprintf "%s\\n" "{said}" >"$log"\nexit {code}\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "code", "ends", "found", "told"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, 0, 0, "memcheck: 0 found"),
        ("========= ERROR SUMMARY: 3 errors", 86, 86, 3, "memcheck: 3 found"),
        ("========= Error: Device not supported", 0, 86, None, "memcheck: no summary"),
    ],
)
def test_what_it_says_is_in_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    code: int,
    ends: int,
    found: int | None,
    told: str,
) -> None:
    sanitizer(tmp_path, said, code)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "checks.json"
    assert card_checks.main(["--json", str(path), "--sanitizer", "memcheck", "--", PASSES]) == ends
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["failed"] == 0
    assert document["passed"] > 0
    assert (document["sanitizer"]["tool"], document["sanitizer"]["found"]) == ("memcheck", found)
    assert said in document["sanitizer"]["said"]
    assert told in checks(document)


def test_where_there_is_none_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "checks.json"
    assert card_checks.main(["--json", str(path), "--sanitizer", "racecheck", "--", PASSES]) == 2
    assert "compute-sanitizer is not on the PATH" in capsys.readouterr().err
    assert not path.exists()
