"""How full the KV pool is when admission starts to wait: `python -m loadtests.pool`, more requests than fit."""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.build import build_loop
from engine.config import KVConfig, SchedulingConfig
from engine.loop import EngineLoop
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from loadtests.driver import PromptSource
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.tables import Table


@dataclass(frozen=True, slots=True)
class Fill:
    """One run.

    Attributes:
        unused: Share of the pool that no sequence held, at each step whose admission had to wait for pages.
        num_preemptions: Sequences that had to yield.
        num_running: Most sequences that ran at once.
    """

    unused: list[float]
    num_preemptions: int
    num_running: int


def fill(loop: EngineLoop, prompts: PromptSource, num_requests: int, rng: random.Random, name: str) -> Fill:
    """Submits more requests of mixed lengths than fit and steps until all have ended."""
    for index in range(num_requests):
        (prompt,) = prompts.draw(1, rng.randint(16, 160))
        sampling = SamplingParams(max_tokens=rng.randint(16, 96), temperature=0.0, ignore_eos=True)
        loop.submit(GenerateRequest(request_id=f"{name}-{index}", prompt_ids=prompt, sampling=sampling))
    before, unused, most = loop.stats.num_preemptions, [], 0
    num_waiting = loop.stats.num_waiting
    while loop.has_work:
        freed = any(event.finish_reason is not None for event in loop.step())
        stats = loop.stats
        # Nobody entered although some wait and the step had tokens to spare: it was pages that were short. Pages freed
        # at the end of the step are not counted: the next step's admission has yet to see them.
        if 0 < stats.num_waiting == num_waiting and not freed:
            unused.append(1 - stats.num_used_pages / stats.num_pages)
        num_waiting, most = stats.num_waiting, max(most, stats.num_running)
    return Fill(unused, loop.stats.num_preemptions - before, most)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.pool", description="Measure how much of the KV pool lies idle while requests wait."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--requests", type=int, default=96, help="submitted at once")
    parser.add_argument("--rounds", type=int, default=2, help="the same with other lengths")
    parser.add_argument("--seed", type=int, default=0, help="draws prompts and lengths")
    add_engine_options(parser)
    parser.set_defaults(pages=256)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    config = engine_config(options, locate(options.model))
    loop = build_loop(
        dataclasses.replace(
            config,
            kv=KVConfig(num_pages=options.pages),
            scheduling=SchedulingConfig(max_batch_tokens=2048, overlap=config.scheduling.overlap),
        )
    )
    prompts, rng = PromptSource(loop.info.vocab_size, options.seed), random.Random(options.seed)
    table = Table(
        title=f"The pool while requests wait, {options.pages} pages, {options.requests} requests at once",
        headers=["round", "most running", "unused, median %", "unused, 95th percentile %", "preemptions"],
    )
    rows = []
    for number in range(options.rounds):
        found = fill(loop, prompts, options.requests, rng, str(number))
        percentile = statistics.quantiles(found.unused, n=20)[-1]
        rows.append(
            {
                "round": number + 1,
                "most_running": found.num_running,
                "unused_median": statistics.median(found.unused) * 100,
                "unused_p95": percentile * 100,
                "preemptions": found.num_preemptions,
            }
        )
        table.add(*rows[-1].values())
    report(
        [table],
        {"model": options.model, "pages": options.pages, "rows": rows},
        json_path=options.json,
        markdown=options.markdown,
        device=loop.info.device,
    )
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
