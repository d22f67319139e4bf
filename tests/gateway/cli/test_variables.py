"""Variables that nothing reads: what is said about them, and that none that something reads is forgotten."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from gateway.cli import app
from gateway.cli.variables import BESIDE_SETTINGS, INTERNAL, setting_variables, unread_variables

ROOT = Path(__file__).parents[3]
KNOWN = setting_variables() | BESIDE_SETTINGS | INTERNAL

_NAME = re.compile(r"WYE_[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_])")
"""No beginning of several, as in `WYE_PROGRAM_*`."""

_NO_VARIABLES = re.compile(r"WYE_NO_\w+")
"""Macros that a build defines for the compiler."""

_EXAMPLE = "WYE_API_KEY"
"""The misspelt name in the documentation."""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("WYE_API_KEY", "WYE_API_KEY is no setting; did you mean WYE_API_KEYS?"),
        ("WYE_MAX_RUN", "WYE_MAX_RUN is no setting; did you mean WYE_MAX_RUNS?"),
        ("wye_api_key", "wye_api_key is no setting; did you mean WYE_API_KEYS?"),
        ("WYE_STEPS", "WYE_STEPS is no setting; did you mean WYE_STEP?"),
        ("WYE_KITCHEN", "WYE_KITCHEN is no setting; nothing reads it"),
    ],
)
def test_a_misspelt_variable_is_told_with_what_was_meant(name: str, line: str) -> None:
    assert unread_variables({name: "s3cret", "PATH": "", "WYE_PORT": "1"}) == [line]


def test_nothing_is_said_of_variables_that_something_reads() -> None:
    assert unread_variables(dict.fromkeys([*KNOWN, "wye_port", "WYE_WEATHER_TOKEN"], ""), {"WYE_WEATHER_TOKEN"}) == []


def test_a_start_warns_and_names_no_value(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(
        '{"tools": [{"name": "a", "kind": "http", "http": '
        '{"url": "https://192.0.2.1/", "headers": {"Authorization": "env:WYE_WEATHER_TOKEN"}}}]}'
    )
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(100))  # found broken only by the engine
    started = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", str(model), "--port", "0"],
        capture_output=True,
        text=True,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("WYE_")},
            "NO_COLOR": "1",
            "WYE_API_KEY": "s3cret",
            "WYE_WEATHER_TOKEN": "t0ken",
            "WYE_TOOLS_FILE": str(tools),
            "WYE_HOME": str(tmp_path),
        },
        timeout=120,
        check=False,
    )
    assert "WARNING gateway.serve: WYE_API_KEY is no setting; did you mean WYE_API_KEYS?\n" in started.stderr
    assert "WARNING gateway.serve: tool a: 192.0.2.1 is no public address" in started.stderr
    assert "WYE_WEATHER_TOKEN" not in started.stderr
    assert "s3cret" not in started.stderr
    assert started.returncode != 0


def test_no_variable_that_the_source_names_is_forgotten() -> None:
    unknown: dict[str, str] = {}
    for path in _sources():
        for name in _NAME.findall(path.read_text("utf-8", errors="replace")):
            if name not in KNOWN and not _NO_VARIABLES.fullmatch(name) and name != _EXAMPLE:
                unknown[name] = str(path.relative_to(ROOT))
    assert unknown == {}


def test_no_variable_that_tests_read_is_forgotten() -> None:
    read = re.compile(rf"environ(?:\.get\(|\[)\s*\"({_NAME.pattern})\"")
    found = {name for path in (ROOT / "tests").rglob("*.py") for name in read.findall(path.read_text("utf-8"))}
    assert found
    assert found <= KNOWN


def test_no_variable_of_an_option_is_forgotten() -> None:
    found = set(_option_variables(get_command(app)))
    assert {"WYE_HOME", "WYE_URL"} <= found <= KNOWN


def test_no_variable_is_listed_that_nothing_names() -> None:
    named = {name for path in [*_sources(), *(ROOT / "tests").rglob("*.py")] for name in _names_in(path)}
    assert (BESIDE_SETTINGS | INTERNAL) - named == set()


def _names_in(path: Path) -> list[str]:
    own = path.name in {"variables.py", "test_variables.py"}
    return [] if own else _NAME.findall(path.read_text("utf-8", errors="replace"))


def _sources() -> list[Path]:
    """All that could name a variable of the product; not the tests, which also name some that do not exist."""
    suffixes = {".py", ".cpp", ".h", ".md", ".yml", ".sh", ".js"}
    folders = ("docs", "engine", "extensions", "gateway", "loadtests", "scripts")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    found += [path for name in ("Makefile", "Dockerfile", "setup.py", "README.md") if (path := ROOT / name).is_file()]
    return found + list(ROOT.glob("docker-compose*.yml")) + list((ROOT / "engine").rglob("Makefile"))


def _option_variables(command: object) -> list[str]:
    if isinstance(command, TyperGroup):
        own = [name for child in command.commands.values() for name in _option_variables(child)]
    else:
        own = []
    given = [parameter.envvar for parameter in getattr(command, "params", [])]
    listed = [[one] if isinstance(one, str) else list(one or ()) for one in given]
    return [*own, *(name for names in listed for name in names if name.startswith("WYE_"))]
