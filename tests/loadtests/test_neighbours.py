"""Chats beside a crowd, against a small server that answers at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.neighbours import main
from tests.loadtests.token_server import running_token_server


def test_chats_are_measured_alone_and_beside_a_crowd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "neighbours.json"
    sizes = ["--chats", "3", "--chat-tokens", "8", "--pause-s", "0.02", "--crowd", "4", "--crowd-output", "8"]
    with running_token_server() as (server, url):
        assert main(["--url", url, "--model", "m", *sizes, "--json", str(file)]) == 0
        assert server.most_open == 5
    assert "A chat of 8 tokens beside 4 requests of another account" in capsys.readouterr().out
    results = json.loads(file.read_text())
    assert len(results["alone_s"]) == len(results["beside_s"]) == 3
    assert results["p50"]["ratio"] == pytest.approx(results["p50"]["beside_ms"] / results["p50"]["alone_ms"])
    assert results["crowd_tokens_per_s"] > 0
