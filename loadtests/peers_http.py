"""Servers beside each other for `loadtests.peers --http`: ours with each format of weights, and llama-server.

All run at once and have the machine to themselves in their turn; one client reads all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.client import Target
from loadtests.driver import PromptSource
from loadtests.http_overhead import stream_all
from loadtests.llama_peer import LlamaCpp
from loadtests.measure import Outcome, shared_decode_rate
from loadtests.models import home
from loadtests.peers_field import measured_name
from loadtests.results import report
from loadtests.server import RunningServer, running_server
from loadtests.tables import Cell, Table
from loadtests.targets import (
    AIM_START_S,
    AIM_STREAMS,
    AIM_TTFT_MS,
    MIN_STREAMS_RATIO,
    MOST_START_S,
    MOST_TTFT_MS,
    verdict,
)
from loadtests.workload import LAST_ID

PEER_KIND = "Q8_0"
PEER = f"llama-server {PEER_KIND}"
NUM_SINGLE = 5
"""Requests of one client, one after the other, that a round's time to first token is drawn from."""


@dataclass(kw_only=True, slots=True)
class Measured:
    """One server's numbers, an entry a round.

    Attributes:
        ready_s: From the start of the process until it was ready.
        ttft_ms: Median time to first token of one client.
        decode: Tokens per second of all streams together while all decode.
        total: Tokens per second of all streams over the whole time, prompts included.
    """

    ready_s: float
    ttft_ms: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """Medians over rounds, by name."""
        rounds = {"ttft_ms": self.ttft_ms, "decode_tokens_per_s": self.decode, "total_tokens_per_s": self.total}
        return {"ready_s": self.ready_s} | {name: statistics.median(values) for name, values in rounds.items()}


def measure_round(target: Target, prompts: PromptSource, options: argparse.Namespace, measured: Measured) -> None:
    """One client first, then all streams at once; adds one entry to each list.

    Raises:
        RuntimeError: A stream failed.
        ValueError: The answers are too short for a decode rate.
    """
    single = [asyncio.run(stream_all(target, prompts.draw(1, options.prompt), 4))[0] for _ in range(NUM_SINGLE)]
    outcomes = asyncio.run(stream_all(target, prompts.draw(options.streams, options.prompt), options.output))
    rate = shared_decode_rate(outcomes)
    if rate is None:
        raise ValueError(f"{options.output} tokens are too few for {options.streams} streams to decode together")
    measured.ttft_ms.append(1000 * statistics.median(outcome.ttft_s for outcome in single))
    measured.decode.append(rate)
    measured.total.append(_total_rate(outcomes))


def take_turns(targets: Mapping[str, Target], measure: Callable[[str, Target], None], rounds: int) -> None:
    """Calls `measure` for every server in every round, the order turned round each time."""
    order = list(targets.items())
    for turn in range(rounds):
        for name, target in order if turn % 2 == 0 else reversed(order):
            measure(name, target)
            print(f"round {turn + 1}: {name}", flush=True)


def measure_servers(options: argparse.Namespace, model: Path, llama: LlamaCpp) -> None:
    """Starts everybody, measures in turns, prints and writes the table.

    Raises:
        ServerFailed: A server did not start.
        RuntimeError: A stream failed.
    """
    prompts = PromptSource(LAST_ID, options.seed)
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            f"Wye {weights}": stack.enter_context(_restarted(options, model, weights, logs))
            for weights in options.formats
        }
        file = llama.quantised(model, PEER_KIND, home() / "peers" / "models")
        context = options.prompt + options.output + 64
        servers[PEER] = stack.enter_context(
            llama.server(file, width=options.streams, context=context, log_path=logs / "llama.log")
        )
        targets = {name: Target.parse(server.url, server.model) for name, server in servers.items()}
        measured = {name: Measured(ready_s=server.ready_s) for name, server in servers.items()}
        for target in targets.values():
            asyncio.run(stream_all(target, prompts.draw(2, 64), 8))

        def measure(name: str, target: Target) -> None:
            measure_round(target, prompts, options, measured[name])

        take_turns(targets, measure, options.rounds)
    report(
        [server_table(measured, options)],
        {
            "streams": options.streams,
            "prompt_tokens": options.prompt,
            "output_tokens": options.output,
            "threads": options.threads,
            "random_weights": options.random_weights,
            "servers": {name: numbers.medians() for name, numbers in measured.items()},
            "rounds": {
                name: {"ttft_ms": of.ttft_ms, "decode": of.decode, "total": of.total} for name, of in measured.items()
            },
        },
        json_path=options.json,
        markdown=options.markdown,
    )


def server_table(measured: Mapping[str, Measured], options: argparse.Namespace) -> Table:
    """Each of ours beside the peer."""
    table = Table(
        title=f"{measured_name(options)} over HTTP, gateway and engine on the same {options.threads} cores",
        headers=["what", "ours", "Wye", PEER, "ratio", "asked", "reached", "aim"],
    )
    theirs = measured[PEER]
    for name, ours in measured.items():
        if name != PEER:
            for row in _rows(ours, theirs, options):
                table.add(row[0], name, *row[1:])
    return table


def _rows(ours: Measured, theirs: Measured, options: argparse.Namespace) -> list[Sequence[Cell]]:
    """What was measured, ours, theirs, how many times better ours is, asked, reached, aim."""
    mine, other = ours.medians(), theirs.medians()
    ttft, start = mine["ttft_ms"], mine["ready_s"]
    faster = {
        "ttft": _median_ratio(theirs.ttft_ms, ours.ttft_ms),
        "decode": _median_ratio(ours.decode, theirs.decode),
        "total": _median_ratio(ours.total, theirs.total),
    }
    together = f"{options.streams} streams"
    decode, total = "decode_tokens_per_s", "total_tokens_per_s"
    return [
        (f"TTFT of one client, {options.prompt} tokens, ms", ttft, other["ttft_ms"], faster["ttft"],
         f"at most {MOST_TTFT_MS:g} ms", verdict(ttft <= MOST_TTFT_MS), f"{AIM_TTFT_MS:g} ms"),
        (f"{together}, decode, tokens/s", mine[decode], other[decode], faster["decode"],
         f"{MIN_STREAMS_RATIO:g} x", verdict(faster["decode"] >= MIN_STREAMS_RATIO), f"{AIM_STREAMS:g}"),
        (f"{together}, prompts included, tokens/s", mine[total], other[total], faster["total"], None, None, None),
        ("start, s", start, other["ready_s"], other["ready_s"] / start, f"at most {MOST_START_S:g} s",
         verdict(start <= MOST_START_S), f"{AIM_START_S:g} s"),
    ]  # fmt: skip


@contextlib.contextmanager
def _restarted(options: argparse.Namespace, model: Path, weights: str, logs: Path) -> Iterator[RunningServer]:
    """Our server, started a second time, so that its start finds everything cached."""
    args = ["--weights", weights, "--step", options.step, "--threads", str(options.threads)]
    for attempt in ("first", "second"):
        with running_server(str(model), args=args, log_path=logs / f"wye-{weights}-{attempt}.log") as server:
            if attempt == "second":
                yield server


def _total_rate(outcomes: Sequence[Outcome]) -> float:
    duration_s = max(outcome.ended_at for outcome in outcomes) - min(outcome.started_at for outcome in outcomes)
    return sum(outcome.num_output_tokens for outcome in outcomes) / duration_s


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
