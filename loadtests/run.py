"""The server under load: `python -m loadtests.run`, against `--url` or a server that it starts itself.

python -m loadtests.run --concurrency 8 --requests 64          closed loop: 8 clients, each at once with the next
python -m loadtests.run --rate 4 --requests 200                open loop: Poisson arrivals, 4 a second
python -m loadtests.run --concurrency 256 --processes 4        clients in four processes, for servers faster than one
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from loadtests.client import Target, complete
from loadtests.measure import Outcome, Slo, latency_table, summarize, throughput_table
from loadtests.results import report, save
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


def closed_loop_in_processes(target: Target, workload: Workload, concurrency: int, num_processes: int) -> list[Outcome]:
    """A closed loop whose clients are spread over processes; their times are of one clock.

    Args:
        target: The server.
        workload: What all of them ask together.
        concurrency: Clients in all.
        num_processes: At most as many as clients.
    """
    with ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_nothing, range(num_processes)))  # started and imported before any clock runs
        parts = [
            pool.submit(
                _closed_loop_alone,
                target,
                replace(
                    workload,
                    num_requests=_share(workload.num_requests, number, num_processes),
                    seed=workload.seed + 7919 * number,
                ),
                _share(concurrency, number, num_processes),
            )
            for number in range(num_processes)
        ]
        return [outcome for part in parts for outcome in part.result()]


def _closed_loop_alone(target: Target, workload: Workload, concurrency: int) -> list[Outcome]:
    return asyncio.run(closed_loop(target, workload, concurrency))


def _share(number: int, part: int, num_parts: int) -> int:
    """Of a number, what one of nearly equal parts gets."""
    return number // num_parts + (part < number % num_parts)


def _nothing(_: int) -> None:
    """Work for a process that is to be started."""


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


def run_workload(target: Target, workload: Workload, concurrency: int, num_processes: int = 1) -> list[Outcome]:
    """Open loop if the workload has a rate, else closed."""
    if workload.rate is not None:
        return asyncio.run(open_loop(target, workload))
    if min(concurrency, num_processes) > 1:
        return closed_loop_in_processes(target, workload, concurrency, min(concurrency, num_processes))
    return asyncio.run(closed_loop(target, workload, concurrency))


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
    parser.add_argument("--processes", type=int, default=1, help="closed loop: processes the clients are spread over")
    parser.add_argument("--rate", type=float, help="open loop: requests per second (Poisson)")
    parser.add_argument("--requests", type=int, help="requests of a run; default: four a client, at least 8")
    parser.add_argument("--warm-up", type=int, default=0, help="requests a client before those of a run, not counted")
    parser.add_argument("--device", help="where the server computes, for the file: cuda:0 adds the GPU's name")
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
        workload_json = _described(options, target.model)
        for concurrency in [0] if options.rate is not None else options.concurrency:
            workload = Workload(
                num_requests=options.requests or max(8, 4 * concurrency),
                prompt=options.prompt,
                output=options.output,
                rate=options.rate,
                shared_prefix=options.shared_prefix,
                seed=options.seed + concurrency,
            )
            if options.warm_up:
                before = replace(
                    workload, num_requests=options.warm_up * max(1, concurrency), seed=workload.seed + 2_000_003
                )
                run_workload(target, before, concurrency, options.processes)
            summary = summarize(run_workload(target, workload, concurrency, options.processes), slo)
            how = f"{options.rate:g} requests/s (Poisson)" if options.rate is not None else f"{concurrency} clients"
            tables += [latency_table(summary, how), throughput_table(summary)]
            runs.append({"rate": options.rate, "concurrency": concurrency or None, **summary.to_json()})
            num_failed += summary.num_failed
            if options.json is not None:  # whatever happens to the next, this one is kept
                save(tables, {"workload": workload_json, "runs": runs}, options.json, device=options.device)
    report(
        tables,
        {"workload": workload_json, "runs": runs},
        json_path=options.json,
        markdown=options.markdown,
        device=options.device,
    )
    return 1 if num_failed else 0


async def _warm_up(target: Target, options: argparse.Namespace) -> None:
    workload = Workload(num_requests=2, prompt=options.prompt, output=options.output, seed=options.seed + 1_000_003)
    await closed_loop(target, workload, concurrency=2)


def _described(options: argparse.Namespace, model: str) -> dict[str, object]:
    return {
        "model": model,
        "prompt_tokens": [options.prompt.low, options.prompt.high],
        "output_tokens": [options.output.low, options.output.high],
        "shared_prefix_tokens": options.shared_prefix,
        "seed": options.seed,
        "warm_up_requests_per_client": options.warm_up,
        "slo_ttft_ms": options.slo_ttft_ms,
        "slo_tpot_ms": options.slo_tpot_ms,
    }


if __name__ == "__main__":
    sys.exit(main())
