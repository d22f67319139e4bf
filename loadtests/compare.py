"""Ours beside `transformers`, on the same weights in one run: `python -m loadtests.compare`.

The order alternates from round to round, so that neither always runs on a warmer or busier machine; numbers are medians
over rounds, ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from loadtests.contest import BatchContestant, Rates, Shape, compete, shapes
from loadtests.driver import EngineDriver, PromptSource
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.tables import Table
from loadtests.transformers_peer import TransformersPeer

OURS, PEER = "Wye", "transformers"


def case_row(shape: Shape, rates: Rates) -> dict[str, Any]:
    """What a shape brought, as JSON values."""
    return {
        "case": shape.label,
        "width": shape.width,
        "prompt_tokens": shape.num_prompt,
        "output_tokens": shape.num_output,
        "ours_tokens_per_s": rates.median(OURS),
        "peer_tokens_per_s": rates.median(PEER),
        "ratio": rates.ratio(OURS, PEER),
        "rounds": {"ours": rates.by_name[OURS], "peer": rates.by_name[PEER]},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.compare", description="Measure the engine beside transformers, in one run."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8, 32], help="sequences decoded together")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--output", type=int, default=64, help="tokens to generate for each sequence")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048], help="prompt lengths measured alone")
    parser.add_argument("--rounds", type=int, default=5, help="medians are taken over as many rounds")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = _parser().parse_args(argv)
    path = locate(options.model)
    driver = EngineDriver(engine_config(options, path))
    info = driver.info
    peer_dtype = "bfloat16" if info.dtype == "int8" else info.dtype  # it has no int8 of its own
    peer = TransformersPeer(path, getattr(torch, peer_dtype), info.device)
    prompts = PromptSource(info.vocab_size, options.seed)
    contestants = [
        BatchContestant(name=name, run=run, prompts=prompts) for name, run in ((OURS, driver.run), (PEER, peer.run))
    ]
    for contestant in contestants:
        contestant.run(prompts.draw(2, 64), 8)
    todo = shapes(options.widths, options.prompt, options.output, options.prefill)
    rates = compete(dict.fromkeys(todo, contestants), options.rounds)
    rows = [case_row(shape, of_shape) for shape, of_shape in rates.items()]
    table = Table(
        title=f"{options.model}, {info.dtype}, {info.device}: tokens per second, medians of {options.rounds} rounds",
        headers=["case", "Wye", f"transformers, {peer_dtype}", "ratio"],
    )
    for row in rows:
        table.add(row["case"], row["ours_tokens_per_s"], row["peer_tokens_per_s"], row["ratio"])
    described = {
        "model": options.model,
        "step": info.step,
        "dtype": info.dtype,
        "device": info.device,
        "attention": info.attention_backend,
        "threads": torch.get_num_threads(),
    }
    report(
        [table],
        {"engine": described, "cases": rows},
        json_path=options.json,
        markdown=options.markdown,
        device=info.device,
    )
    driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
