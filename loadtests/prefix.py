"""What the prefix cache saves: `python -m loadtests.prefix`, first token of a long prompt, cold and repeated."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.driver import EngineDriver, PromptSource
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.tables import Table


def measure(driver: EngineDriver, prompts: PromptSource, num_prompt: int, rounds: int) -> dict[str, float]:
    """Medians over rounds; each round has a prompt of its own, asked cold and then again.

    Raises:
        RuntimeError: A repeated prompt took nothing from the cache.
    """
    cold, warm, cached = [], [], []
    for _ in range(rounds):
        (prompt,) = prompts.draw(1, num_prompt)
        cold.append(driver.run([prompt], 2).ttft_s)
        again = driver.run([prompt], 2)
        warm.append(again.ttft_s)
        cached.append(again.sequences[0].num_cached_tokens)
        if not cached[-1]:
            raise RuntimeError("the repeated prompt was not found in the prefix cache")
    return {
        "prompt_tokens": num_prompt,
        "cached_tokens": statistics.median(cached),
        "cold_ttft_ms": statistics.median(cold) * 1000,
        "warm_ttft_ms": statistics.median(warm) * 1000,
        "ratio": statistics.median(first / second for first, second in zip(cold, warm, strict=True)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.prefix", description="Measure a repeated prompt against a cold one."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--prompt", type=int, nargs="+", default=[500, 2000], help="prompt lengths in tokens")
    parser.add_argument("--rounds", type=int, default=5, help="medians are taken over as many rounds")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    driver = EngineDriver(engine_config(options, locate(options.model)))
    prompts = PromptSource(driver.info.vocab_size, options.seed)
    driver.run(prompts.draw(2, 64), 8)
    rows = [measure(driver, prompts, length, options.rounds) for length in options.prompt]
    table = Table(
        title="A repeated prompt",
        headers=["prompt tokens", "from cache", "cold TTFT, ms", "repeated TTFT, ms", "ratio"],
    )
    for row in rows:
        table.add(*row.values())
    report(
        [table],
        {"model": options.model, "rows": rows},
        json_path=options.json,
        markdown=options.markdown,
        device=driver.info.device,
    )
    driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
