"""Servers beside each other: the same client for all, in turns, and what is asked of the result."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import pytest

from loadtests import peers_http
from loadtests.client import Target
from loadtests.driver import PromptSource
from loadtests.http_overhead import stream_all
from loadtests.measure import Outcome
from loadtests.peers_http import PEER, Measured, measure_round, server_table, take_turns
from tests.loadtests.token_server import running_token_server

OPTIONS = argparse.Namespace(random_weights=False, prompt=16, output=8, streams=4, model="m", threads=2)


async def paced(target: Target, prompts: Sequence[Sequence[int]], num_output: int) -> list[Outcome]:
    """Stream `i` gets a token a second, the first after `i + 1` seconds."""
    return [
        Outcome(
            num_prompt_tokens=len(prompt),
            started_at=100.0,
            asked_tokens=num_output,
            token_times=[101.0 + index + position for position in range(num_output)],
            num_output_tokens=num_output,
            ended_at=100.0 + index + num_output,
        )
        for index, prompt in enumerate(prompts)
    ]


def test_a_round_is_one_client_and_then_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_http, "stream_all", paced)
    measured = Measured(ready_s=1.5)
    measure_round(Target.parse("http://localhost:1", "m"), PromptSource(20_000), OPTIONS, measured)
    assert measured.medians() == pytest.approx(
        {"ready_s": 1.5, "ttft_ms": 1000.0, "decode_tokens_per_s": 4.0, "total_tokens_per_s": 32 / 11}
    )


def test_all_streams_are_open_at_once() -> None:
    with running_token_server() as (server, url):
        asyncio.run(stream_all(Target.parse(url, "m"), PromptSource(20_000).draw(4, 16), 8))
    assert server.most_open == 4
    assert [body["max_tokens"] for body in server.bodies] == [8] * 4


def test_a_stream_that_fails_ends_the_measurement() -> None:
    with running_token_server() as (server, url):
        server.refused_length = 16
        with pytest.raises(RuntimeError, match="503"):
            measure_round(Target.parse(url, "m"), PromptSource(20_000), OPTIONS, Measured(ready_s=1.0))


def test_answers_too_short_to_decode_together_are_refused() -> None:
    short = argparse.Namespace(prompt=16, output=1, streams=2, model="m", threads=2)
    with running_token_server() as (_, url), pytest.raises(ValueError, match="1 tokens are too few"):
        measure_round(Target.parse(url, "m"), PromptSource(20_000), short, Measured(ready_s=1.0))


def test_servers_take_turns_in_going_first() -> None:
    targets = {name: Target.parse("http://localhost:1", name) for name in ("a", "b")}
    calls: list[str] = []
    take_turns(targets, lambda name, target: calls.append(name + target.model), 3)
    assert calls == ["aa", "bb", "bb", "aa", "aa", "bb"]


def test_the_table_gives_every_number_with_what_was_asked() -> None:
    measured = {
        "Wye int8": Measured(ready_s=4.0, ttft_ms=[50.0], decode=[600.0], total=[300.0]),
        PEER: Measured(ready_s=2.0, ttft_ms=[100.0], decode=[300.0], total=[100.0]),
    }
    ttft, decode, total, start = server_table(measured, OPTIONS).rows
    assert ttft == (
        "TTFT of one client, 16 tokens, ms", "Wye int8", 50.0, 100.0, 2.0, "at most 60 ms", "yes", "40 ms"
    )  # fmt: skip
    assert decode == ("4 streams, decode, tokens/s", "Wye int8", 600.0, 300.0, 2.0, "3 x", "no", "800")
    assert total[2:5] == (300.0, 100.0, 3.0)
    assert start == ("start, s", "Wye int8", 4.0, 2.0, 0.5, "at most 10 s", "yes", "5 s")
