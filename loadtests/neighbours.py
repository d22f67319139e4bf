"""A chat of one account beside a crowd of another's: `python -m loadtests.neighbours`.

Starts `wye serve` with two API keys. One sends short chats, one after the other with pauses, and nobody else asks for
anything; then the other keeps so many requests running all the time, a new one for each that ends, and the chats go on
as before. What the crowd gets done is measured with the chats and without them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtests.client import Target, complete
from loadtests.results import report
from loadtests.server import running_server
from loadtests.tables import Table
from loadtests.workload import FIRST_ID, LAST_ID, Request

KEYS = ("chats", "crowd")
ASKED_RATIO = 1.5
"""Of the p99 of the time to a chat's first token, beside a crowd and alone."""


@dataclass(slots=True)
class Crowd:
    """Requests that run all the time.

    Attributes:
        target: Where they go.
        size: How many at once.
        num_prompt_tokens, max_tokens: Of each.
        num_tokens: Answered so far.
    """

    target: Target
    size: int
    num_prompt_tokens: int
    max_tokens: int
    num_tokens: int = 0

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        await asyncio.gather(*(self._one(random.Random(seed)) for seed in range(self.size)))

    async def _one(self, draw: random.Random) -> None:
        while True:
            # Of different lengths, so that they do not all end and begin together.
            length = draw.randint(self.max_tokens // 2, self.max_tokens)
            outcome = await complete(self.target, _request(draw, self.num_prompt_tokens, length))
            if outcome.error:
                raise RuntimeError(f"a request of the crowd failed: {outcome.error}")
            self.num_tokens += len(outcome.token_times)


async def first_token_s(target: Target, draw: random.Random, options: argparse.Namespace) -> list[float]:
    """Seconds to the first token of each of some chats, with pauses between them."""
    found = []
    for _ in range(options.chats):
        await asyncio.sleep(draw.uniform(0.5, 1.5) * options.pause_s)
        outcome = await complete(target, _request(draw, options.chat_tokens, options.chat_output))
        if outcome.error:
            raise RuntimeError(f"a chat failed: {outcome.error}")
        found.append(outcome.token_times[0] - outcome.started_at)
    return found


async def measure(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """Chats alone, beside the crowd, and the crowd alone."""
    draw = random.Random(0)
    chats = replace(target, api_key=KEYS[0])
    crowd = Crowd(replace(target, api_key=KEYS[1]), options.crowd, options.crowd_tokens, options.crowd_output)
    warm = argparse.Namespace(**{**vars(options), "chats": 3})
    await first_token_s(chats, draw, warm)
    alone = await first_token_s(chats, draw, options)
    running = asyncio.create_task(crowd.run())
    try:
        await _busy(crowd, running)
        num_before, begun_s = crowd.num_tokens, time.perf_counter()
        beside = await first_token_s(chats, draw, options)
        beside_rate = (crowd.num_tokens - num_before) / (time.perf_counter() - begun_s)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return {"alone_s": alone, "beside_s": beside, "crowd_tokens_per_s": beside_rate}


async def _busy(crowd: Crowd, running: asyncio.Task[None]) -> None:
    """Waits until every one of a crowd has had a first answer."""
    while crowd.num_tokens < crowd.size * crowd.max_tokens:
        await asyncio.sleep(0.05)
        if running.done():
            running.result()


def _request(draw: random.Random, num_prompt_tokens: int, max_tokens: int) -> Request:
    prompt_ids = tuple(draw.randint(FIRST_ID, LAST_ID) for _ in range(num_prompt_tokens))
    return Request(arrival_s=0.0, prompt_ids=prompt_ids, max_tokens=max_tokens, seed=draw.randrange(2**31))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.neighbours", description="Measure chats of one account beside a crowd of another's."
    )
    parser.add_argument("--model", default="smollm2-135m", help="as `wye serve` takes it")
    parser.add_argument("--url", default="", help=f"a server that runs already, with the keys {' and '.join(KEYS)}")
    parser.add_argument("--arg", action="append", default=[], help="further option of `wye serve`")
    parser.add_argument("--chats", type=int, default=100, help="chats to measure, alone and beside the crowd")
    parser.add_argument("--chat-tokens", type=int, default=128, help="prompt tokens of a chat")
    parser.add_argument("--chat-output", type=int, default=4, help="tokens of its answer")
    parser.add_argument("--pause-s", type=float, default=0.2, help="mean pause between chats")
    parser.add_argument("--crowd", type=int, default=64, help="requests of the other account at once")
    parser.add_argument("--crowd-tokens", type=int, default=128, help="prompt tokens of each")
    parser.add_argument("--crowd-output", type=int, default=64, help="most tokens of their answers")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    with _server(options) as (url, model), asyncio.Runner() as runner:
        results = runner.run(measure(Target.parse(url, model), options))
    tables = _tables(results, options)
    report(tables, results, json_path=options.json, markdown=options.markdown)
    return 0


@contextlib.contextmanager
def _server(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Address and model of the server to measure, which is started unless it is there."""
    if options.url:
        yield options.url, options.model
        return
    environment = {"WYE_API_KEYS": ",".join(KEYS)}
    with running_server(options.model, args=options.arg, environment=environment) as server:
        yield server.url, server.model


def _tables(results: dict[str, Any], options: argparse.Namespace) -> list[Table]:
    """Adds quantiles to the results, and shows them."""
    table = Table(
        title=f"A chat of {options.chat_tokens} tokens beside {options.crowd} requests of another account",
        headers=["time to first token, ms", "alone", "beside them", "ratio", "asked"],
    )
    alone, beside = (statistics.quantiles(results[name], n=100) for name in ("alone_s", "beside_s"))
    for name, at, asked in (("p50", 49, None), ("p99", 98, ASKED_RATIO)):
        ratio = beside[at] / alone[at]
        results[name] = {"alone_ms": alone[at] * 1000, "beside_ms": beside[at] * 1000, "ratio": ratio}
        table.add(name, alone[at] * 1000, beside[at] * 1000, ratio, asked)
    return [table]


if __name__ == "__main__":
    sys.exit(main())
