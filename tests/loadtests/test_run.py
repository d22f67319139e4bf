"""The load test as a command, against a small server that answers at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests import run
from tests.loadtests.token_server import TokenServer, running_token_server


@pytest.fixture
def token_server() -> Iterator[tuple[TokenServer, str]]:
    with running_token_server() as running:
        yield running


def test_a_closed_loop_keeps_its_number_of_clients(token_server: tuple[TokenServer, str], tmp_path: Path) -> None:
    server, url = token_server
    path = tmp_path / "run.json"
    sizes = ["--concurrency", "3", "--requests", "12", "--prompt", "4:9", "--output", "3"]
    assert run.main(["--url", url, "--model", "m", *sizes, "--json", str(path)]) == 0
    (result,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert (result["concurrency"], result["num_requests"], result["num_failed"]) == (3, 12, 0)
    assert result["ttft_ms"]["p50"] > 0
    assert server.most_open == 3


def test_clients_in_several_processes_keep_their_number_together(
    token_server: tuple[TokenServer, str], tmp_path: Path
) -> None:
    server, url = token_server
    path = tmp_path / "run.json"
    sizes = ["--concurrency", "3", "--processes", "2", "--requests", "9", "--prompt", "4", "--output", "3"]
    assert run.main(["--url", url, "--model", "m", *sizes, "--json", str(path)]) == 0
    (result,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert (result["concurrency"], result["num_requests"], result["num_failed"]) == (3, 9, 0)
    assert 0 < server.most_open <= 3
    assert result["output_tokens_per_s"] > 0


def test_an_open_loop_sends_every_request(token_server: tuple[TokenServer, str], tmp_path: Path) -> None:
    server, url = token_server
    path = tmp_path / "run.json"
    sizes = ["--rate", "500", "--requests", "20", "--prompt", "4", "--output", "2:3"]
    assert run.main(["--url", url, "--model", "m", *sizes, "--json", str(path)]) == 0
    (result,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert (result["rate"], result["num_requests"]) == (500, 20)
    assert {body["model"] for body in server.bodies} == {"m"}


def test_failures_are_counted_and_fail_the_command(
    token_server: tuple[TokenServer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = token_server
    server.refused_length = 5
    sizes = ["--concurrency", "2", "--requests", "16", "--prompt", "4:5", "--output", "2"]
    assert run.main(["--url", url, "--model", "m", *sizes]) == 1
    assert "failure: HTTP 503: busy" in capsys.readouterr().out
