"""CPU time of a gateway process for each token it streams: `python -m loadtests.gateway_cost`.

One gateway worker stands between a scripted engine, which gives one token a step to every stream, and this process,
which only takes in what it sends. Nothing but the worker's own CPU time is counted, so that neither the model nor the
client matters; what opening and closing the streams costs is measured apart and told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gateway.settings import Settings, WorkerSettings
from gateway.sse import DONE
from loadtests.models import locate
from loadtests.results import report
from loadtests.server import CHECKOUT, RunningServer, free_port, running_command
from loadtests.tables import Table
from loadtests.targets import ASKED_STREAMS, MOST_TOKEN_US, verdict

READ_INTERVAL_S = 0.02
"""How often the client takes in what has come."""

KINDS = ("chat", "text", "chat with usage")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """CPU time of one round.

    Attributes:
        token_us: Microseconds for each token of a running stream.
        stream_ms: Milliseconds to open and end one stream.
    """

    token_us: float
    stream_ms: float


def body_of(kind: str, model: str, num_tokens: int) -> tuple[str, bytes]:
    """Path and body of a streaming request of one of `KINDS`."""
    fields: dict[str, Any] = {"model": model, "max_tokens": num_tokens, "stream": True}
    if kind == "text":
        return "/v1/completions", json.dumps({**fields, "prompt": "Once upon a time"}).encode()
    if kind == "chat with usage":
        fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    messages = [{"role": "user", "content": "Tell me everything."}]
    return "/v1/chat/completions", json.dumps({**fields, "messages": messages}).encode()


@contextlib.contextmanager
def gateway(model: str, step_ms: float) -> Iterator[RunningServer]:
    """A worker in front of a scripted engine of a stored model's tokens."""
    path, port = locate(model), free_port()
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/engine"
        command = [sys.executable, "-m", "loadtests.scripted_engine", endpoint, str(path), str(step_ms)]
        engine = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE)
        settings = Settings(port=port, model_names=(model,), access_log=False)
        worker = WorkerSettings(settings=settings, engine_endpoint=endpoint, model_path=path)
        try:
            with running_command(
                [sys.executable, "-m", "gateway.worker"],
                name="the gateway worker",
                port=port,
                environment={**os.environ, **worker.environment()},
            ) as server:
                yield server
        finally:
            engine.communicate()


def measure(server: RunningServer, kind: str, num_streams: int, num_tokens: int) -> Cost:
    """One measurement: streams of one token, then as many of `num_tokens`; what the second costs more is the tokens'.

    Raises:
        RuntimeError: A stream did not come to its end.
    """
    worker = psutil.Process(server.pid)
    spent_s = []
    for length in (1, num_tokens):
        before = worker.cpu_times()
        _stream_all(server, kind, num_streams, length)
        after = worker.cpu_times()
        spent_s.append(after.user + after.system - before.user - before.system)
    opening_s, all_s = spent_s
    return Cost(
        token_us=(all_s - opening_s) / (num_streams * (num_tokens - 1)) * 1e6, stream_ms=opening_s / num_streams * 1e3
    )


def _stream_all(server: RunningServer, kind: str, num_streams: int, num_tokens: int) -> None:
    """Reads every stream to its end, now and then. Nothing sleeps on a socket: waking it would be the worker's time."""
    path, body = body_of(kind, server.model, num_tokens)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        ends: dict[socket.socket, bytes] = {}
        for _ in range(num_streams):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(head + body)
            connection.setblocking(False)
            ends[connection] = b""
        while ends:
            time.sleep(READ_INTERVAL_S)
            for connection in tuple(ends):
                is_over, ends[connection] = _read(connection, ends[connection])
                if is_over and DONE not in ends[connection]:
                    raise RuntimeError(f"a stream ended with {ends[connection]!r}")
                if is_over:
                    del ends[connection]


def _read(connection: socket.socket, end: bytes) -> tuple[bool, bytes]:
    """Takes what has come; returns whether that was all, and the last bytes of all so far."""
    with contextlib.suppress(BlockingIOError):
        while True:
            data = connection.recv(1 << 16)
            if not data:
                return True, end
            end = (end + data)[-64:]
    return False, end


def cost_row(kind: str, rounds: Sequence[Cost]) -> dict[str, Any]:
    """Medians of one kind's rounds, as JSON values."""
    return {
        "kind": kind,
        "token_us": statistics.median(cost.token_us for cost in rounds),
        "stream_ms": statistics.median(cost.stream_ms for cost in rounds),
        "rounds_us": [cost.token_us for cost in rounds],
    }


def cost_table(rows: Sequence[Mapping[str, Any]], num_streams: int) -> Table:
    """Cost of each kind; asked of `ASKED_STREAMS` streams."""
    headers = ["processor time of a gateway", "us a token", "ms a stream", "asked", "reached"]
    table = Table(title=f"{num_streams} streams of one token a step", headers=headers)
    is_asked = num_streams == ASKED_STREAMS
    for row in rows:
        reached = verdict(row["token_us"] < MOST_TOKEN_US) if is_asked else None
        asked = f"less than {MOST_TOKEN_US:g} us a token" if is_asked else None
        table.add(row["kind"], row["token_us"], row["stream_ms"], asked, reached)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.gateway_cost", description="Measure a gateway's CPU time for each streamed token."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--streams", type=int, default=64, help="streams at once")
    parser.add_argument("--tokens", type=int, default=500, help="tokens of each stream")
    parser.add_argument("--step-ms", type=float, default=8.0, help="pace of the scripted engine")
    parser.add_argument("--rounds", type=int, default=5, help="medians are taken over as many rounds")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    costs: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    with gateway(options.model, options.step_ms) as server:
        measure(server, "chat", options.streams, 50)
        for turn in range(options.rounds):
            for kind in KINDS if turn % 2 == 0 else reversed(KINDS):
                costs[kind].append(measure(server, kind, options.streams, options.tokens))
    rows = [cost_row(kind, rounds) for kind, rounds in costs.items()]
    results = {"streams": options.streams, "tokens": options.tokens, "step_ms": options.step_ms, "kinds": rows}
    report([cost_table(rows, options.streams)], results, json_path=options.json, markdown=options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
