"""`make serve`, as the README shows it: from the command to an answer to Ctrl-C."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from docs.pages import ROOT
from loadtests.server import free_port
from tests.documentation.conftest import MODEL
from tests.terminal import CTRL_C, TerminalSession

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / ".venv" / ".installed").exists() or Path(sys.prefix) != ROOT / ".venv",
        reason="make would install first: run `make dev`",
    ),
]


def test_make_serve_serves_until_ctrl_c_and_exits_0(model_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS"):  # of the `make test` that runs us
        monkeypatch.delenv(name, raising=False)
    port = free_port()
    session = TerminalSession(
        ["make", "--no-print-directory", "-C", str(ROOT), "serve", f"PORT={port}", f"MODEL={MODEL}"],
        {"WYE_HOME": str(model_store), "NO_COLOR": "1"},
    )
    session.wait_for("Ctrl-C")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
        assert json.load(answer)["data"][0]["id"] == MODEL
    session.press(CTRL_C)
    assert session.wait() == 0, session.output
    assert f"http://127.0.0.1:{port}/v1" in session.output
    assert "curl" in session.output
    assert "***" not in session.output
