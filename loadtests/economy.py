"""What the KV economy is worth: `python -m loadtests.economy`.

Which context gives way first, on a trace of three tenants; and a long context back from host memory against the same
one computed again, on a real model. The trace needs no model and takes the real scheduler, so its figures are the same
on every machine; `--restores 0` leaves the other part out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
from engine.contexts.commands import AppendTokens, OpenContext, ReleaseContexts, RetainContext
from engine.leases.lease import OnPressure
from engine.loop import EngineLoop
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from loadtests.driver import PromptSource
from loadtests.economy_trace import BOASTFUL, HONEST, PAGE_KIB, SILENT, TRUTHFUL, Policy, Trace, needed_pages
from loadtests.models import locate
from loadtests.results import report
from loadtests.tables import Table

OVERLOAD = 1.5
"""Memory that the tenants would need, over what there is."""


def play(num_sessions: int, seeds: Sequence[int]) -> tuple[Table, list[dict[str, Any]]]:
    """Every policy on the same days; sums over days."""
    tenants = (HONEST, BOASTFUL, SILENT)
    sizes = [round(needed_pages(tenants, seed=seed, num_sessions=num_sessions) / OVERLOAD) for seed in seeds]
    table = Table(
        title=f"{len(tenants)} tenants in {OVERLOAD} times less memory than they need, {len(seeds)} days",
        headers=["gives way first", "tenant", "used again, tokens", "of that computed again, %", "KV paid, GiB·s"],
    )
    rows = []
    days = [(policy, tenants) for policy in get_args(Policy)] + [("value", (HONEST, TRUTHFUL, SILENT))]
    for policy, present in days:
        outcomes = [
            Trace(present, size, policy, seed=seed, num_sessions=num_sessions).run()
            for size, seed in zip(sizes, seeds, strict=True)
        ]
        is_truthful = TRUTHFUL in present
        for name in (*(tenant.name for tenant in present), "all"):
            of = [name] if name != "all" else [tenant.name for tenant in present]
            reused = sum(outcome.reused[one] for outcome in outcomes for one in of)
            again = sum(outcome.recomputed[one] for outcome in outcomes for one in of)
            row: dict[str, Any] = {
                "policy": _NAMES[policy] + (", the over-claiming one says the truth" if is_truthful else ""),
                "tenant": name,
                "tokens_used_again": reused + again,
                "percent_recomputed": 100 * again / max(1, reused + again),
                "paid_gib_s": sum(outcome.idle_page_s[one] for outcome in outcomes for one in of) * PAGE_KIB / 2**20,
            }
            rows.append(row | {"recomputed_tokens": again})
            table.add(*row.values())
    return table, rows


_NAMES: dict[Policy, str] = {
    "value": "least expected saving",
    "lru": "longest unused",
    "quota": "longest unused of who holds most",
}


def restore(loop: EngineLoop, prompts: PromptSource, num_tokens: int, rounds: int) -> dict[str, Any]:
    """First token behind a long context whose pages others have taken meanwhile: copied back, and computed again.

    Raises:
        RuntimeError: The context was not where it should have been.
    """
    took: dict[OnPressure, list[float]] = {"host": [], "tokens": []}
    for number in range(rounds + 1):
        for on_pressure, times in took.items():
            name, other = f"{on_pressure} {number}", f"other {on_pressure} {number}"
            _hold(loop, name, prompts.draw(1, num_tokens)[0])
            loop.obey(RetainContext(name, name, 10**6, 1 << 30, 0.1, on_pressure))
            _hold(loop, other, prompts.draw(1, num_tokens)[0])
            found = loop.describe_context(name).residency
            if found != on_pressure:
                raise RuntimeError(f"the context is on {found}, not on {on_pressure}")
            loop.obey(ReleaseContexts([other]))
            start = time.perf_counter()
            _compute(loop, name, 1)
            if number:  # the first round warms up, and measures what copies and prompts take
                times.append(time.perf_counter() - start)
            loop.obey(ReleaseContexts([name]))
    host_ms, computed_ms = (statistics.median(times) * 1000 for times in took.values())
    return {
        "context_tokens": num_tokens,
        "mib": -(-num_tokens // loop.info.page_size) * loop.info.page_bytes / 2**20,
        "restored_ms": host_ms,
        "computed_ms": computed_ms,
        "ratio": computed_ms / host_ms,
    }


def _hold(loop: EngineLoop, name: str, tokens: Sequence[int]) -> None:
    loop.obey(OpenContext(name, name, name))
    loop.obey(AppendTokens(name, list(tokens)))
    _compute(loop, name, 0)


def _compute(loop: EngineLoop, name: str, num_output: int) -> None:
    sampling = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
    loop.submit(GenerateRequest(request_id=name, prompt_ids=[], context_id=name, sampling=sampling))
    while loop.has_work:
        loop.step()


def measure_restores(options: argparse.Namespace) -> tuple[Table, list[dict[str, Any]]]:
    """Restores, in a pool that holds one such context and no more."""
    num_pages = options.tokens // 16 + 32
    loop = build_loop(
        EngineConfig(
            model=str(locate(options.model)),
            device=options.device,
            seed=0,
            kv=KVConfig(num_pages=num_pages, prefix_cache=False, host_bytes=4 << 30),
            scheduling=SchedulingConfig(max_num_seqs=8, max_batch_tokens=2048),
            parallel=ParallelConfig(num_threads=options.threads),
        )
    )
    prompts = PromptSource(loop.info.vocab_size, options.seed)
    rows = [restore(loop, prompts, options.tokens, options.restores)]
    table = Table(
        title=f"A context that others' pages have displaced, to its next token, {options.model} on {loop.info.device}",
        headers=["context tokens", "MiB", "copied back, ms", "computed again, ms", "ratio"],
    )
    for row in rows:
        table.add(*row.values())
    loop.close()
    return table, rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.economy", description="Measure demotion by value and restores from host memory."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--threads", type=int, help="CPU threads of a step")
    parser.add_argument("--tokens", type=int, default=2000, help="length of the context that is restored")
    parser.add_argument("--restores", type=int, default=5, help="medians are taken over as many; 0 leaves them out")
    parser.add_argument("--sessions", type=int, default=150, help="of each tenant and day; 0 leaves the trace out")
    parser.add_argument("--days", type=int, default=3, help="days of the trace")
    parser.add_argument("--seed", type=int, default=0, help="of the first day, and of prompts")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    tables: list[Table] = []
    results: dict[str, Any] = {"model": options.model}
    if options.sessions:
        table, results["trace"] = play(options.sessions, range(options.seed, options.seed + options.days))
        tables.append(table)
    if options.restores:
        table, results["restores"] = measure_restores(options)
        tables.append(table)
    report(tables, results, json_path=options.json, markdown=options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
