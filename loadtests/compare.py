"""Ours beside `transformers`, on the same weights in one run: `python -m loadtests.compare`.

The order alternates from round to round, so that neither always runs on a warmer or busier machine; numbers are medians
over rounds, ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loadtests.driver import BatchTiming, EngineDriver, PromptSource
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.tables import Table
from loadtests.transformers_peer import TransformersPeer

Run = Callable[[Sequence[Sequence[int]], int], BatchTiming]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What both are asked to do, and which number is compared.

    Attributes:
        label: For the table.
        width: Sequences together.
        num_prompt, num_output: Tokens of each.
        value: The rate that is compared, in tokens per second.
    """

    label: str
    width: int
    num_prompt: int
    num_output: int
    value: Callable[[BatchTiming], float | None]


def cases(widths: Sequence[int], num_prompt: int, num_output: int, prefills: Sequence[int]) -> list[Case]:
    """Decode at each width, then one prompt of each length alone."""
    decode = [
        Case(
            label=f"decode, width {width}",
            width=width,
            num_prompt=num_prompt,
            num_output=num_output,
            value=lambda batch: batch.decode_tokens_per_s,
        )
        for width in widths
    ]
    prefill = [
        Case(
            label=f"prefill, {length} tokens",
            width=1,
            num_prompt=length,
            num_output=1,
            value=lambda batch: batch.prefill_tokens_per_s,
        )
        for length in prefills
    ]
    return decode + prefill


def measure(case: Case, ours: Run, peer: Run, prompts: PromptSource, rounds: int) -> dict[str, Any]:
    """Both on the same prompts, `rounds` times, taking turns in going first.

    Raises:
        ValueError: The answers are too short for the rate to exist.
    """
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for turn in range(rounds):
        batch = prompts.draw(case.width, case.num_prompt)
        order = [("ours", ours), ("peer", peer)]
        for name, run in order if turn % 2 == 0 else reversed(order):
            rate = case.value(run(batch, case.num_output))
            if rate is None:
                raise ValueError(f"{case.label}: {case.num_output} tokens are too few to measure decoding")
            rates[name].append(rate)
    return {
        "case": case.label,
        "width": case.width,
        "prompt_tokens": case.num_prompt,
        "output_tokens": case.num_output,
        "ours_tokens_per_s": statistics.median(rates["ours"]),
        "peer_tokens_per_s": statistics.median(rates["peer"]),
        "ratio": statistics.median(a / b for a, b in zip(rates["ours"], rates["peer"], strict=True)),
        "rounds": rates,
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
    for run in (driver.run, peer.run):
        run(prompts.draw(2, 64), 8)
    rows = []
    for case in cases(options.widths, options.prompt, options.output, options.prefill):
        rows.append(measure(case, driver.run, peer.run, prompts, options.rounds))
        print(f"{case.label}: {rows[-1]['ratio']:.2f} x transformers", flush=True)
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
