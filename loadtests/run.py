"""The server under load: `python -m loadtests.run`, against `--url` or a server that it starts itself.

python -m loadtests.run --concurrency 8 --requests 64          closed loop: 8 clients, each at once with the next
python -m loadtests.run --rate 4 --requests 200                open loop: Poisson arrivals, 4 a second
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtests.client import Target, complete
from loadtests.measure import Outcome, Slo, latency_table, summarize, throughput_table
from loadtests.results import report
from loadtests.server import running_server
from loadtests.workload import Lengths, Workload


async def closed_loop(target: Target, workload: Workload, concurrency: int) -> list[Outcome]:
    """Runs the workload with `concurrency` clients, each taking the next request when its last has ended."""
    requests = workload.requests()
    outcomes: list[Outcome] = []

    async def client() -> None:
        outcomes.extend([await complete(target, request) for request in requests])

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    return outcomes


async def open_loop(target: Target, workload: Workload) -> list[Outcome]:
    """Sends each request at its arrival time, whether or not earlier ones have been answered."""
    start = time.perf_counter()
    tasks: list[asyncio.Task[Outcome]] = []
    async with asyncio.TaskGroup() as group:
        for request in workload.requests():
            due_at = start + request.arrival_s
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            tasks.append(group.create_task(complete(target, request, due_at=due_at)))
    return [task.result() for task in tasks]


async def run_workload(target: Target, workload: Workload, concurrency: int) -> list[Outcome]:
    """Open loop if the workload has a rate, else closed."""
    if workload.rate is not None:
        return await open_loop(target, workload)
    return await closed_loop(target, workload, concurrency)


@contextlib.contextmanager
def target_of(options: argparse.Namespace) -> Iterator[Target]:
    """The server that the options name, started if they name none."""
    if options.url:
        yield Target.parse(options.url, options.model, api_key=options.api_key, timeout_s=options.timeout)
        return
    print(f"starting a server for {options.model}", flush=True)
    with running_server(options.model, args=options.serve_args.split()) as server:
        print(f"ready after {server.ready_s:.1f} s on {server.url}", flush=True)
        yield Target.parse(server.url, server.model, timeout_s=options.timeout)


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which server to measure."""
    parser.add_argument(
        "--url", help="base URL of a running server, e.g. http://127.0.0.1:8000/v1; else one is started"
    )
    parser.add_argument("--model", default="smollm2-135m", help="model to serve, or the name to send to --url")
    parser.add_argument("--api-key", help="bearer token for --url")
    parser.add_argument("--serve-args", default="", help="further options for the started server, as one string")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds after which a request has failed")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.run", description="Measure a server under load.")
    add_target_options(parser)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="closed loop: clients")
    parser.add_argument("--rate", type=float, help="open loop: requests per second (Poisson)")
    parser.add_argument("--requests", type=int, help="requests of a run; default: four a client, at least 8")
    parser.add_argument("--prompt", type=Lengths.parse, default=Lengths.parse("128"), help="tokens: N or LOW:HIGH")
    parser.add_argument("--output", type=Lengths.parse, default=Lengths.parse("64"), help="tokens: N or LOW:HIGH")
    parser.add_argument("--shared-prefix", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--seed", type=int, default=0, help="draws arrivals, lengths and prompts")
    parser.add_argument("--slo-ttft-ms", type=float, help="goodput: most milliseconds to the first token")
    parser.add_argument("--slo-tpot-ms", type=float, help="goodput: most milliseconds per further token")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if any request failed."""
    options = _parser().parse_args(argv)
    slo = Slo(ttft_ms=options.slo_ttft_ms, tpot_ms=options.slo_tpot_ms)
    tables, runs = [], []
    num_failed = 0
    with target_of(options) as target:
        asyncio.run(_warm_up(target, options))
        for concurrency in [0] if options.rate is not None else options.concurrency:
            workload = Workload(
                num_requests=options.requests or max(8, 4 * concurrency),
                prompt=options.prompt,
                output=options.output,
                rate=options.rate,
                shared_prefix=options.shared_prefix,
                seed=options.seed + concurrency,
            )
            summary = summarize(asyncio.run(run_workload(target, workload, concurrency)), slo)
            how = f"{options.rate:g} requests/s (Poisson)" if options.rate is not None else f"{concurrency} clients"
            tables += [latency_table(summary, how), throughput_table(summary)]
            runs.append({"rate": options.rate, "concurrency": concurrency or None, **summary.to_json()})
            num_failed += summary.num_failed
    report(tables, {"workload": _described(options), "runs": runs}, json_path=options.json, markdown=options.markdown)
    return 1 if num_failed else 0


async def _warm_up(target: Target, options: argparse.Namespace) -> None:
    workload = Workload(num_requests=2, prompt=options.prompt, output=options.output, seed=options.seed + 1_000_003)
    await closed_loop(target, workload, concurrency=2)


def _described(options: argparse.Namespace) -> dict[str, object]:
    return {
        "model": options.model,
        "prompt_tokens": [options.prompt.low, options.prompt.high],
        "output_tokens": [options.output.low, options.output.high],
        "shared_prefix_tokens": options.shared_prefix,
        "seed": options.seed,
        "slo_ttft_ms": options.slo_ttft_ms,
        "slo_tpot_ms": options.slo_tpot_ms,
    }


if __name__ == "__main__":
    sys.exit(main())
