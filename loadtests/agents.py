"""Agents as loops of a client and as programs: `python -m loadtests.agents`.

Three workflows: ReACT (a tool call after each thought), CodeACT (code after each thought), Swarm (roles that hand
messages on). Each is done in three ways, which take turns within a round:

- remote: a loop of a client, with `--rtt-ms` before each request, as over a network.
- local: the same loop on the server's own machine.
- program: a script on the server.

Then ReACT as a program in all eight combinations of: keep the specifications of the tools cached (or compute them for
each run), start tools early (in the middle of the thought), drop a specification from the context once it is used. The
last changes what the model sees, so the text may differ from there on; all else generates the same tokens.

Prefill tokens are counted by the engine, for all ways alike: whatever it computes beside the tokens that it draws, what
tools and other roles said among it, and what it had computed before and lost to others.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from loadtests.agent_client import Link, Spent, loop
from loadtests.agent_numbers import (
    COMBINATIONS,
    FACTORS,
    Combination,
    Measured,
    arms_table,
    combination_name,
    effects,
    factorial_tables,
    summary,
)
from loadtests.agent_work import TOOL, Shape, Task, Workflow, program_body, tasks
from loadtests.results import report, save
from loadtests.server import RunningServer, running_server
from loadtests.tables import Table
from loadtests.tool_service import running_tool

WAYS = ("remote", "local", "program")
STATS_S = 1.5
"""After so long what the engine has counted is told."""


class Bench:
    """One server with one tool, and the runs on it."""

    def __init__(self, server: RunningServer, tool_url: str) -> None:
        self._server = server
        self._url = f"http://127.0.0.1:{server.port}"
        self._tool_url = tool_url
        self._num_salts = 0

    async def loops(self, work: Sequence[Task], rtt_s: float) -> Measured:
        """Runs as loops of a client."""
        fields = {"model": self._server.model, "cache_salt": await self._salt(work[0], keep=True)}

        async def one(task: Task) -> Spent:
            async with Link(self._url, rtt_s) as model, Link(self._tool_url) as tool:
                return await loop(task, model, tool, fields)

        return await self._counted([functools.partial(one, task) for task in work])

    async def programs(self, work: Sequence[Task], combination: Combination = (True, False, False)) -> Measured:
        """Runs as programs."""
        keep, early, drop = combination
        salt = await self._salt(work[0], keep=keep)

        async def one(task: Task, number: int) -> Spent:
            body = program_body(task, early=early, drop=drop)
            body |= {"model": self._server.model, "cache_salt": salt if keep else f"{salt}.{number}"}
            async with Link(self._url) as model:
                answer, _ = await model.post("/v1/completions", body)
            extension = answer["extension"]
            kv_kib_s = extension["usage"]["kv_byte_seconds"] / 1024
            return Spent(tokens=extension["result"]["tokens"], kv_kib_s=kv_kib_s)

        return await self._counted([functools.partial(one, task, number) for number, task in enumerate(work)])

    async def _counted(self, runs: Sequence[Callable[[], Awaitable[Spent]]]) -> Measured:
        before = await self._num_prefilled()
        found = await _together(runs)
        return dataclasses.replace(found, prefill_tokens=(await self._num_prefilled() - before) / len(runs))

    async def _num_prefilled(self) -> float:
        """Prompt tokens that the engine has computed up to now."""
        await asyncio.sleep(STATS_S)
        async with Link(self._url) as link:
            return await link.metric("wye_engine_prefill_tokens_total")

    async def _salt(self, task: Task, *, keep: bool) -> str:
        """Of one way in one round: nothing is found that another has computed, but what all runs begin with if kept."""
        self._num_salts += 1
        salt = f"agents {self._num_salts}"
        if keep:
            body = {"model": self._server.model, "cache_salt": salt, "prompt": task.beginnings(), "max_tokens": 1}
            async with Link(self._url) as model:
                await model.post("/v1/completions", body)
        return salt


async def _together(runs: Sequence[Callable[[], Awaitable[Spent]]]) -> Measured:
    async def timed(run: Callable[[], Awaitable[Spent]]) -> Spent:
        start_s = time.perf_counter()
        spent = await run()
        spent.seconds = time.perf_counter() - start_s
        return spent

    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(timed(run)) for run in runs]
    whole_s = time.perf_counter() - start_s
    spent = [task.result() for task in running]
    costs = [one.kv_kib_s for one in spent if one.kv_kib_s is not None]
    return Measured(
        spans_s=[one.seconds for one in spent],
        whole_s=whole_s,
        kv_mib_s=statistics.fmean(costs) / 1024 if len(costs) == len(spent) else None,
        texts=[one.tokens for one in spent],
    )


async def arms(bench: Bench, shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One workflow in all ways."""
    ways = [way for way in WAYS if way in options.ways]
    measured: dict[str, list[Measured]] = {way: [] for way in ways}
    for number in range(-1, options.rounds):
        warm_up = number < 0
        some = shape if not warm_up else Shape(workflow=shape.workflow, calls=2, tokens=2, spec_tokens=8, ask_tokens=8)
        work = tasks(some, options.instances, round_number=number, vocab_size=options.vocab_size)
        for way in ways if number % 2 else ways[::-1]:
            if way == "program":
                found = await bench.programs(work)
            else:
                found = await bench.loops(work, options.rtt_ms / 1000 if way == "remote" else 0.0)
            if not warm_up:
                measured[way].append(found)
                print(f"{shape.workflow} {way}: {found.runs_per_s:.2f} runs/s", file=sys.stderr, flush=True)
    return [
        {"workflow": shape.workflow, "way": way, **summary(found, measured.get("local", found))}
        for way, found in measured.items()
    ]


async def factorial(bench: Bench, shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    """ReACT as a program in all combinations."""
    measured: dict[Combination, list[Measured]] = {combination: [] for combination in COMBINATIONS}
    for number in range(options.rounds):
        work = tasks(shape, options.instances, round_number=1000 + number, vocab_size=options.vocab_size)
        for combination in COMBINATIONS if number % 2 else COMBINATIONS[::-1]:
            found = await bench.programs(work, combination)
            measured[combination].append(found)
            print(f"{combination_name(combination)}: {found.runs_per_s:.2f} runs/s", file=sys.stderr, flush=True)
    base = measured[COMBINATIONS[0]]
    return [
        {**dict(zip(FACTORS, combination, strict=True)), **summary(found, base)}
        for combination, found in measured.items()
    ]


async def measure(
    bench: Bench, options: argparse.Namespace, on_part: Callable[[list[Table], dict[str, Any]], None]
) -> tuple[list[Table], dict[str, Any]]:
    """All of it; `on_part` is told what there is after each workflow and after the combinations."""
    calls: dict[Workflow, int] = {"react": options.calls, "codeact": options.calls, "swarm": options.swarm_calls}
    shapes = {
        name: Shape(workflow=name, calls=count, tokens=options.tokens, spec_tokens=options.spec_tokens)
        for name, count in calls.items()
        if name in options.workflows
    }
    results: dict[str, Any] = {name: value for name, value in vars(options).items() if name not in ("json", "markdown")}
    rows: list[dict[str, Any]] = []
    results["arms"] = rows
    tables: list[Table] = []
    for shape in shapes.values():
        rows += await arms(bench, shape, options)
        tables = [arms_table(rows, vars(options))]
        on_part(tables, results)
    if "react" in shapes and not options.no_factorial:
        num_calls = options.factorial_calls or options.calls
        combined = await factorial(bench, dataclasses.replace(shapes["react"], calls=num_calls), options)
        found = effects({(row["keep"], row["early"], row["drop"]): math.log(row["runs_per_s"]) for row in combined})
        results |= {"factorial": combined, "effects": found}
        tables += factorial_tables(combined, found, num_calls)
        on_part(tables, results)
    return tables, results


def tools_file(path: Path, tool_url: str) -> None:
    """Writes the server's file of tools."""
    parameters = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    tool = {
        "name": TOOL,
        "kind": "http",
        "parameters": parameters,
        "http": {"url": f"{tool_url}/{TOOL}"},
        "effect": "pure",
        "max_parallel": 1024,
    }
    path.write_text(json.dumps({"tools": [tool]}), encoding="utf-8")


def parsed(*argv: str) -> argparse.Namespace:
    """Options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.agents", description="Measure agents as loops of a client and as programs."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--vocab-size", type=int, default=30_000, help="token ids of prompts are below")
    parser.add_argument(
        "--workflows", nargs="+", choices=("react", "codeact", "swarm"), default=["react", "codeact", "swarm"]
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=list(WAYS), help="compared with local, where that is"
    )
    parser.add_argument("--instances", type=int, default=128, help="runs at once")
    parser.add_argument("--calls", type=int, default=8, help="interactions of a run of ReACT and CodeACT")
    parser.add_argument("--swarm-calls", type=int, default=32, help="interactions of a run of Swarm")
    parser.add_argument("--factorial-calls", type=int, help="interactions of a run in the combinations, if not --calls")
    parser.add_argument("--tokens", type=int, default=16, help="tokens generated between interactions")
    parser.add_argument("--spec-tokens", type=int, default=64, help="tokens of each tool's specification")
    parser.add_argument("--tool-delay-ms", type=float, default=100.0, help="what the tool of ReACT takes")
    parser.add_argument("--rtt-ms", type=float, default=20.0, help="how far away the remote client is")
    parser.add_argument("--rounds", type=int, default=3, help="medians are taken over as many")
    parser.add_argument("--kv-bytes", metavar="SIZE", help="memory of the server's KV pool, as `wye serve` takes it")
    parser.add_argument("--no-factorial", action="store_true", help="leave the combinations out")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = parsed(*(sys.argv[1:] if argv is None else argv))

    def keep(tables: list[Table], results: dict[str, Any]) -> None:
        if options.json is not None:
            save(tables, results, options.json)

    with (
        tempfile.TemporaryDirectory() as directory,
        running_tool(options.tool_delay_ms / 1000) as tool_url,
    ):
        path = Path(directory) / "tools.json"
        tools_file(path, tool_url)
        environment = {
            "WYE_TOOLS_FILE": str(path),
            "WYE_TOOL_NETWORKS": "127.0.0.0/8",
            "WYE_MAX_PROGRAMS": str(max(64, options.instances)),
            "WYE_PROGRAM_WALL_S": "3600",
        }
        log_path = Path(directory) / "log"
        args = [] if options.kv_bytes is None else ["--kv-bytes", options.kv_bytes]
        with running_server(options.model, args=args, environment=environment, log_path=log_path) as server:
            try:
                tables, results = uvloop.run(measure(Bench(server, tool_url), options, keep))
            except ExceptionGroup as group:
                print(f"a run failed: {group.exceptions[0]!r}\n{log_path.read_text()[-4000:]}", file=sys.stderr)
                return 1
    report(tables, results, json_path=options.json, markdown=options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
