"""What a program costs beside the same work without one: `python -m loadtests.programs`.

An engine process serves this one, which plays a gateway worker: it runs the programs and the plain completions they are
compared with, through the same `Runtime`. With `--gateways` further processes share both, as workers of a server do.
Kinds of a pair alternate from round to round, in an order that turns around, and are compared within each round. Narrow
pairs take less time and vary more: there are more rounds of them.

- admission: from `run_program` to the script's first call of the server, while others run.
- generate: programs that only call `generate` against plain completions of the same prompts.
- samples: programs whose tokens a device program draws, a watermark, against completions drawn by temperature.
- steps: programs that look at every step and choose its token, against the same as generate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.process import EngineProcess
from engine.sampling.params import SamplingParams
from engine.text.model import TextModel
from extensions.output import GenerateOptions
from extensions.programs.program import Program
from extensions.programs.request import ProgramRequest
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from loadtests.models import locate
from loadtests.program_gateways import Gateways, Order, as_gateways_do, open_gateways
from loadtests.results import report, save
from loadtests.tables import Table

WAITS = """
async def main(request, lm):
    lm.now()
    await lm.sleep(request.args["stay_s"])
"""

GENERATES = """
async def main(request, lm):
    ctx = await lm.context(request.prompt)
    answer = await ctx.generate(max_tokens=request.args["num_tokens"], temperature=0.0, template_stops=False, emit=True)
    return answer.text
"""

STEPS = """
async def main(request, lm):
    ctx = await lm.context(request.prompt)
    gen = await ctx.generation(max_tokens=request.args["num_tokens"], temperature=0.0, template_stops=False, top=16)
    token = None
    while True:
        step = await gen.step(choose=token)
        if step.finished:
            return ctx.length
        token = step.token if step.entropy < 100.0 else step.candidates[1].token
"""

SAMPLES = """
GREENLIST = '''
def sample(logits, key, prev, gamma, delta):
    green = hash_uniform(prev, vocab) < gamma
    return gumbel_argmax(logits + where(green, delta, 0.0), key)
'''

async def main(request, lm):
    ctx = await lm.context(request.prompt)
    sampler = await lm.program(GREENLIST, gamma=0.25, delta=2.0)
    answer = await ctx.generate(max_tokens=request.args["num_tokens"], sampler=sampler, template_stops=False, emit=True)
    return answer.text
"""
"""Draws by the rule of Kirchenbauer et al. (arXiv 2301.10226)."""

_TITLES = {
    "generate": "Programs that only generate",
    "samples": "Programs that draw with a device program",
    "steps": "Programs that choose every token",
}

_KINDS = {"generate": (GENERATES, 0.0), "samples": (SAMPLES, 1.0), "steps": (STEPS, 0.0)}
"""Script, and temperature of the completions it is compared with."""

PROMPT = "Write down everything that you know of the river number {}, from its source to the sea."


@contextlib.asynccontextmanager
async def runtime_of(
    model: str, max_workers: int, *, device: str = "auto", pages: int | None = None, gateways: int = 1
) -> AsyncIterator[tuple[Runtime, Gateways | None]]:
    """A runtime over an engine process of a stored model, and further processes with theirs if there are several."""
    path = locate(model)
    config = EngineConfig(model=str(path), device=device, kv=KVConfig(num_pages=pages))
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/engine"
        with EngineProcess(config, endpoint, log_level="WARNING") as process:
            await asyncio.to_thread(process.wait_ready)
            connection = EngineConnection(endpoint)
            await connection.connect()
            runtime = Runtime(connection, TextModel.load(path), sandbox=PoolOptions(max_workers=max_workers))
            as_gateways_do()
            try:
                if gateways > 1:
                    with open_gateways(gateways, endpoint, path, max_workers, obey) as others:
                        yield runtime, others
                else:
                    yield runtime, None
            finally:
                await runtime.aclose()
                await connection.close()


async def admission_ms(runtime: Runtime, program: Program, num_running: int, num_samples: int) -> list[float]:
    """Milliseconds from admission to the first call of programs, so many of which run at any time."""
    stay_s = 0.0 if num_running == 1 else 0.5

    async def run() -> float:
        started = await runtime.run_program(program, ProgramRequest(args={"stay_s": stay_s}))
        outcome = await started.result()
        assert outcome.usage.first_call_s is not None
        return outcome.usage.first_call_s * 1000

    if num_running == 1:
        return [await run() for _ in range(num_samples)]
    tasks = []
    for _ in range(num_running + num_samples):
        tasks.append(asyncio.ensure_future(run()))
        await asyncio.sleep(stay_s / num_running)
    return list(await asyncio.gather(*tasks))[num_running:]


async def obey(runtime: Runtime, order: Order) -> None:
    """Runs programs or plain completions at once."""
    if order.source:
        await _run_programs(runtime, await runtime.check_program(order.source), order)
    else:
        await _complete(runtime, order)


async def _complete(runtime: Runtime, order: Order) -> None:
    num_tokens = order.num_tokens
    sampling = SamplingParams(max_tokens=num_tokens, temperature=order.temperature, ignore_eos=True)
    options = GenerateOptions(sampling=sampling, report_tokens=False)

    async def one(at: int) -> None:
        prompt = PROMPT.format(f"{order.round_number}.{at}")
        ids = runtime.text.tokenizer.encode(prompt, add_special=True)
        async with await runtime.context(ids).generate(options) as generation:
            text = "".join([step.text async for step in generation])
        assert text
        assert generation.usage.num_completion_tokens == num_tokens

    await asyncio.gather(*(one(at) for at in order.places))


async def _run_programs(runtime: Runtime, program: Program, order: Order) -> None:
    num_tokens = order.num_tokens

    async def one(at: int) -> None:
        prompt = PROMPT.format(f"{order.round_number}.{at}")
        run = await runtime.run_program(program, ProgramRequest(prompt=prompt, args={"num_tokens": num_tokens}))
        outcome = await run.result()
        assert outcome.usage.num_completion_tokens == num_tokens

    await asyncio.gather(*(one(at) for at in order.places))


async def seconds(runtime: Runtime, gateways: Gateways | None, order: Order) -> float:
    """How long an order takes, here or in all further processes."""
    if gateways is not None:
        return await gateways.run(order)
    start_s = time.perf_counter()
    await obey(runtime, order)
    return time.perf_counter() - start_s


async def compare(
    runtime: Runtime,
    source: str,
    width: int,
    num_tokens: int,
    rounds: int,
    first_round: int,
    *,
    temperature: float = 0.0,
    gateways: Gateways | None = None,
) -> dict[str, Any]:
    """Plain completions and programs of one width, in turn; every prompt is new to the engine.

    Returns:
        Seconds of each, and medians over rounds: of both rates, and of what the programs' are of the others in a round.
    """
    plain: list[float] = []
    with_program: list[float] = []
    for at in range(rounds):
        number = first_round + 2 * at
        kinds = [("", plain), (source, with_program)]
        for turn, (script, found) in enumerate(reversed(kinds) if at % 2 else kinds):
            order = Order(script, range(width), num_tokens, number + turn, temperature)
            found.append(await seconds(runtime, gateways, order))
    pairs = list(zip(plain, with_program, strict=True))
    return {
        "width": width,
        "plain_tokens_per_s": width * num_tokens / statistics.median(plain),
        "program_tokens_per_s": width * num_tokens / statistics.median(with_program),
        "ratio": statistics.median(plain_s / program_s for plain_s, program_s in pairs),
        "more_ms_per_step": statistics.median(program_s - plain_s for plain_s, program_s in pairs) / num_tokens * 1000,
        "plain_s": plain,
        "program_s": with_program,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def rounds_of(width: int, rounds: int) -> int:
    """How many pairs of a width are measured, where a wide one has so many."""
    return rounds * (4 if width < 4 else 2 if width < 16 else 1)


async def measure(options: argparse.Namespace) -> tuple[list[Table], dict[str, Any], str]:
    """All of it, each width in the file as soon as it is there; the device with it."""
    results: dict[str, Any] = {
        "model": options.model,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "gateways": options.gateways,
        "program_graphs": os.environ.get("WYE_PROGRAM_GRAPHS") != "0",
    }
    if options.add and options.json is not None and options.json.exists():
        kept = json.loads(options.json.read_text())
        if any(kept.get(name, 1) != value for name, value in results.items() if name != "rounds"):
            raise SystemExit(f"{options.json} holds other measurements than {results}: nothing can be added to them")
        results |= {name: kept[name] for name in ("admission", *_KINDS) if name in kept}
    most = max(*options.widths, *options.step_widths, *options.beside, 1) + 16
    opened = runtime_of(options.model, most, device=options.device, pages=options.pages, gateways=options.gateways)
    async with opened as (runtime, gateways):
        results["step"], device = runtime.info.step, runtime.info.device
        if options.beside:
            results["admission"] = await _measure_admission(runtime, options)
        await compare(runtime, GENERATES, max(options.widths), 8, 1, 10_000, gateways=gateways)
        for place, kind in enumerate(options.kinds):
            source, temperature = _KINDS[kind]
            await compare(runtime, source, 1, 8, 1, 100_000 * (place + 1), temperature=temperature, gateways=gateways)
            for at, width in enumerate(options.step_widths if kind == "steps" else options.widths):
                number, rounds = 100_000 * (place + 1) + 1000 * (at + 1), rounds_of(width, options.rounds)
                row = await compare(
                    runtime,
                    source,
                    width,
                    options.tokens,
                    rounds,
                    number,
                    temperature=temperature,
                    gateways=gateways,
                )
                others = [one for one in results.get(kind, ()) if one["width"] != width]
                results[kind] = sorted([*others, row], key=lambda one: one["width"])
                if options.json is not None:  # whatever happens to the next, this one is kept
                    save(tables_of(results), results, options.json, device=device)
        return tables_of(results), results, device


def tables_of(results: Mapping[str, Any]) -> list[Table]:
    """What is there of the measurements."""
    tables = []
    if "admission" in results:
        tables.append(Table(title="From run_program to the first call", headers=["programs", "p50 ms", "p99 ms"]))
        for row in results["admission"]:
            tables[-1].add(row["programs"], row["p50_ms"], row["p99_ms"])
    for kind in (kind for kind in _KINDS if kind in results):
        is_recorded = kind == "samples" and results["program_graphs"] and results["step"] == "cuda"
        recorded = ", as part of recorded steps" if is_recorded else ""
        title = f"{_TITLES[kind]}{recorded}, {results['tokens']} tokens each"
        headers = ["at once", "plain tokens/s", "program tokens/s", "ratio", "ms more a token"]
        tables.append(Table(title=title, headers=headers))
        for row in results[kind]:
            rates = row["plain_tokens_per_s"], row["program_tokens_per_s"]
            tables[-1].add(row["width"], *rates, row["ratio"], row["more_ms_per_step"])
    return tables


async def _measure_admission(runtime: Runtime, options: argparse.Namespace) -> list[dict[str, Any]]:
    waits = await runtime.check_program(WAITS)
    rows = []
    for beside in options.beside:
        await admission_ms(runtime, waits, beside, beside)
        found = await admission_ms(runtime, waits, beside, options.samples)
        rows.append({"programs": beside, "p50_ms": quantile(found, 0.5), "p99_ms": quantile(found, 0.99)})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.programs", description="Measure what programs cost beside plain completions."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--pages", type=int, help="pages of the KV pool")
    parser.add_argument("--kinds", nargs="+", choices=list(_KINDS), default=list(_KINDS), help="which programs")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8, 64], help="generations at once")
    parser.add_argument("--step-widths", type=int, nargs="+", default=[1, 32], help="stepped generations at once")
    parser.add_argument("--beside", type=int, nargs="*", default=[1, 64], help="programs that run meanwhile")
    parser.add_argument("--samples", type=int, default=256, help="programs whose admission is timed")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each generation")
    parser.add_argument("--gateways", type=int, default=1, help="processes that share programs and completions")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of a wide kind; narrow ones have more")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--add", action="store_true", help="keep what the file has of other kinds and widths")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    tables, results, device = uvloop.run(measure(options))  # as gateway workers run
    report(tables, results, json_path=options.json, markdown=options.markdown, device=device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
