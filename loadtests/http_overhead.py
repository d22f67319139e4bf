"""What HTTP adds: `python -m loadtests.http_overhead`.

The same streams twice in one run, alternating: through a driver in this process, and through a server that
`wye serve` runs with its own engine process, read by this process as a client. Both have the machine to themselves in
their turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.client import Target, complete
from loadtests.driver import EngineDriver, PromptSource
from loadtests.measure import Outcome
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.server import running_server
from loadtests.tables import Table
from loadtests.workload import Request


async def stream_all(target: Target, prompts: Sequence[Sequence[int]], num_output: int) -> list[Outcome]:
    """All prompts at once over HTTP.

    Raises:
        RuntimeError: A stream failed.
    """
    requests = [
        Request(arrival_s=0.0, prompt_ids=tuple(prompt), max_tokens=num_output, seed=index)
        for index, prompt in enumerate(prompts)
    ]
    outcomes = await asyncio.gather(*(complete(target, request) for request in requests))
    for outcome in outcomes:
        if outcome.error:
            raise RuntimeError(f"a stream failed: {outcome.error}")
    return outcomes


def measure(
    driver: EngineDriver, target: Target, prompts: PromptSource, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Median TPOT and TTFT of every round, in milliseconds, by name."""
    rounds: dict[str, list[float]] = {"engine_tpot": [], "http_tpot": [], "engine_ttft": [], "http_ttft": []}

    def engine_turn() -> None:
        batch = driver.run(prompts.draw(options.streams, options.prompt), options.output)
        rounds["engine_tpot"].append(batch.tpot_s * 1000)
        rounds["engine_ttft"].append(batch.ttft_s * 1000)

    def http_turn() -> None:
        outcomes = asyncio.run(stream_all(target, prompts.draw(options.streams, options.prompt), options.output))
        rounds["http_tpot"].append(statistics.median(outcome.tpot_s for outcome in outcomes) * 1000)
        rounds["http_ttft"].append(statistics.median(outcome.ttft_s for outcome in outcomes) * 1000)

    for turn in range(options.rounds):
        turns = (engine_turn, http_turn) if turn % 2 == 0 else (http_turn, engine_turn)
        for take in turns:
            take()
    return rounds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.http_overhead", description="Measure the engine's time per token against HTTP's."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--streams", type=int, default=8, help="streams at once")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each stream")
    parser.add_argument("--output", type=int, default=128, help="tokens to generate for each stream")
    parser.add_argument("--rounds", type=int, default=7, help="medians are taken over as many rounds")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    parser.add_argument("--serve-args", default="", help="further options for the started server, as one string")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    driver = EngineDriver(engine_config(options, locate(options.model)))
    prompts = PromptSource(driver.info.vocab_size, options.seed)
    with running_server(options.model, args=options.serve_args.split()) as server:
        target = Target.parse(server.url, server.model)
        driver.run(prompts.draw(2, 64), 8)
        asyncio.run(stream_all(target, prompts.draw(2, 64), 8))
        rounds = measure(driver, target, prompts, options)
    added = statistics.median(
        http / engine - 1 for http, engine in zip(rounds["http_tpot"], rounds["engine_tpot"], strict=True)
    )
    table = Table(title=f"{options.streams} streams", headers=["median, ms", "engine alone", "over HTTP"])
    for name in ("tpot", "ttft"):
        table.add(name.upper(), statistics.median(rounds[f"engine_{name}"]), statistics.median(rounds[f"http_{name}"]))
    table.add("added to TPOT, %", None, added * 100)
    results = {"streams": options.streams, "added_tpot_share": added, "rounds_ms": rounds}
    report([table], results, json_path=options.json, markdown=options.markdown, device=driver.info.device)
    driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
