"""The engine alone: `python -m loadtests.offline`. Imports nothing of the gateway.

python -m loadtests.offline --model smollm2-135m --widths 1 8 32
python -m loadtests.offline --shape qwen3-0.6b --device cuda --widths 1 32 256 --prompt 128 --output 272 --batch 16
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from engine.config import EngineConfig, KVConfig, KVFormat, ParallelConfig, SchedulingConfig, StepName, WeightFormat
from engine.models.checkpoint import open_checkpoint
from engine.models.parameters import parameter_shapes
from engine.request import EngineInfo
from loadtests.driver import BatchTiming, EngineDriver, PromptSource
from loadtests.results import report, save
from loadtests.tables import Table

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1}


def peak_memory_mib(device: str) -> tuple[float, float | None]:
    """Most memory held so far, in MiB: resident in this process, and allocated on the GPU (None without one)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resident = peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    if not device.startswith("cuda"):
        return resident, None
    import torch

    return resident, torch.cuda.max_memory_allocated(torch.device(device)) / 2**20


def median_of(batches: Sequence[BatchTiming], value: Callable[[BatchTiming], float | None]) -> float | None:
    """Median of one number over rounds; None if no round has it."""
    values = [number for batch in batches if (number := value(batch)) is not None]
    return statistics.median(values) if values else None


def measure_widths(
    driver: EngineDriver,
    prompts: PromptSource,
    widths: Sequence[int],
    num_prompt: int,
    num_output: int,
    rounds: int,
    *,
    temperature: float = 0.0,
    warm_up: int = 0,
) -> Iterator[dict[str, Any]]:
    """Batches of each width, medians over rounds behind some that do not count; each as soon as it is there."""
    for width in widths:
        batches = [
            driver.run(prompts.draw(width, num_prompt), num_output, temperature=temperature)
            for _ in range(warm_up + rounds)
        ][warm_up:]
        decode = median_of(batches, lambda batch: batch.decode_tokens_per_s)
        yield {
            "width": width,
            "prompt_tokens": num_prompt,
            "output_tokens": num_output,
            "prefill_tokens_per_s": median_of(batches, lambda batch: batch.prefill_tokens_per_s),
            "decode_tokens_per_s": decode,
            "step_ms": None if decode is None else width / decode * 1000,
            "ttft_ms": statistics.median(batch.ttft_s for batch in batches) * 1000,
            "tpot_ms": statistics.median(batch.tpot_s for batch in batches) * 1000,
        }


def measure_prefill(
    driver: EngineDriver,
    prompts: PromptSource,
    lengths: Sequence[int],
    rounds: int,
    width: int = 1,
    *,
    warm_up: int = 0,
) -> Iterator[dict[str, Any]]:
    """Prompts of each length, so many at once, until all have their first token; medians as in `measure_widths`."""
    for length in lengths:
        walls_s = [driver.run(prompts.draw(width, length), 1).wall_s for _ in range(warm_up + rounds)]
        wall_s = statistics.median(walls_s[warm_up:])
        yield {
            "prompts": width,
            "prompt_tokens": length,
            "ttft_ms": wall_s * 1000,
            "prefill_tokens_per_s": width * length / wall_s,
        }


def weight_bytes(model: str | Path, weights: str) -> int:
    """Bytes of weights that a decoding step reads: all but an embedding that is not the head too."""
    config = open_checkpoint(str(model)).config
    shapes = parameter_shapes(config)
    if not config.tied_embeddings:
        del shapes["model.embed_tokens.weight"]
    return sum(math.prod(shape) for shape in shapes.values()) * _WEIGHT_BYTES[weights]


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    command = argparse.ArgumentParser(prog="python -m loadtests.offline", description="Measure the engine alone.")
    add_model_options(command)
    command.add_argument("--widths", type=int, nargs="*", default=[1, 8, 32], help="sequences decoded together")
    command.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    command.add_argument("--output", type=int, default=64, help="tokens to generate for each sequence")
    command.add_argument("--prefill", type=int, nargs="*", default=[512, 2048], help="prompt lengths measured alone")
    command.add_argument("--batch", type=int, default=0, help="measure as many of these prompts at once too")
    command.add_argument("--context", type=int, default=0, help="decode behind prompts of so many tokens too")
    command.add_argument("--context-widths", type=int, nargs="+", default=[1], help="sequences of those")
    command.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    command.add_argument("--bandwidth", type=float, default=4.2, help="TB/s that a GPU's memory can be read at")
    command.add_argument("--rounds", type=int, default=3, help="medians are taken over as many rounds")
    command.add_argument("--warm-up", type=int, default=0, help="rounds of each kind that come before and do not count")
    command.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(command)
    command.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    command.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return command


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which model to measure; see `model_of`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    what.add_argument("--shape", help="random weights of a known shape, e.g. qwen3-0.6b or llama-3.1-8b")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Options that become an `EngineConfig`."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--weights", choices=get_args(WeightFormat), default="auto", help="weights in memory")
    parser.add_argument("--step", choices=get_args(StepName), default="auto", help="what computes a step")
    parser.add_argument("--attention", default="auto", help="attention backend of torch's step")
    parser.add_argument("--threads", type=int, help="CPU threads of a step")
    parser.add_argument("--kv-dtype", choices=get_args(KVFormat), default="auto", help="K and V in memory")
    parser.add_argument("--pages", type=int, help="pages of the KV pool")
    parser.add_argument("--max-model-len", type=int, help="tokens of one sequence at most")
    parser.add_argument("--batch-tokens", type=int, help="tokens of one step at most")
    parser.add_argument("--no-prefix-cache", action="store_true", help="keep no finished prompts")
    parser.add_argument("--no-overlap", action="store_true", help="do not prepare a step while another runs")


def engine_config(options: argparse.Namespace, model: str | Path) -> EngineConfig:
    """What the options of `add_engine_options` ask for."""
    return EngineConfig(
        model=str(model),
        device=options.device,
        weights=options.weights,
        step=options.step,
        attention=options.attention,
        seed=0,
        max_model_len=options.max_model_len,
        kv=KVConfig(dtype=options.kv_dtype, num_pages=options.pages, prefix_cache=not options.no_prefix_cache),
        scheduling=SchedulingConfig(overlap=not options.no_overlap, max_batch_tokens=options.batch_tokens),
        parallel=ParallelConfig(num_threads=options.threads),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = parser().parse_args(argv)
    started_s = time.perf_counter()
    driver = EngineDriver(engine_config(options, model_of(options)))
    info = driver.info
    loaded_mib, _ = peak_memory_mib(info.device)
    prompts = PromptSource(info.vocab_size, options.seed)
    started_s = time.perf_counter() - started_s
    driver.run(prompts.draw(2, min(options.prompt, 64)), 8)
    gc.collect()
    rows: dict[str, list[dict[str, Any]]] = {"widths": [], "contexts": [], "prefill": []}

    def shown() -> tuple[list[Table], dict[str, Any]]:
        """What there is so far."""
        peak_mib, gpu_mib = peak_memory_mib(info.device)
        memory = {"peak_rss_mib": peak_mib, "peak_rss_after_load_mib": loaded_mib, "peak_gpu_mib": gpu_mib}
        engine = _described(info, options, started_s)
        tables = [_engine_table(info, engine, memory)]
        tables += [_width_table(rows[kind]) for kind in ("widths", "contexts") if rows[kind]]
        tables += [_prefill_table(rows["prefill"])] if rows["prefill"] else []
        return tables, {"engine": engine, **rows, "memory": memory, "rounds": options.rounds}

    for kind, row in _measured(driver, prompts, options):
        rows[kind].append(row)
        if options.json is not None:  # whatever happens to the next, this one is kept
            save(*shown(), options.json, device=info.device)
    tables, results = shown()
    report(tables, results, json_path=options.json, markdown=options.markdown, device=info.device)
    driver.close()
    return 0


def _measured(
    driver: EngineDriver, prompts: PromptSource, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of every kind, each as soon as it is there."""
    rounds, warm_up = options.rounds, options.warm_up
    floor_ms = None
    if driver.info.device.startswith("cuda"):
        floor_ms = weight_bytes(model_of(options), driver.info.dtype) / options.bandwidth / 1e9
    decoded = [("widths", options.widths, options.prompt)]
    if options.context:
        decoded.append(("contexts", options.context_widths, options.context))
    for kind, widths, num_prompt in decoded:
        for row in measure_widths(
            driver,
            prompts,
            widths,
            num_prompt,
            options.output,
            rounds,
            temperature=options.temperature,
            warm_up=warm_up,
        ):
            yield kind, row if floor_ms is None else {**row, "floor_ms": floor_ms}
    for width in (1, options.batch) if options.batch else (1,):
        for row in measure_prefill(driver, prompts, options.prefill, rounds, width, warm_up=warm_up):
            yield "prefill", row


def _described(info: EngineInfo, options: argparse.Namespace, started_s: float) -> dict[str, Any]:
    return {
        "model": f"random weights, shape {options.shape}" if options.shape else options.model,
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "device": info.device,
        "step": info.step,
        "dtype": info.dtype,
        "kv_dtype": info.kv_dtype,
        "attention": info.attention_backend,
        "pages": info.num_pages,
        "load_s": info.load_s,
        "start_s": started_s,
        "pool_mib": info.num_pages * info.page_bytes / 2**20,
        "temperature": options.temperature,
        "prompt_graphs": info.step == "cuda" and os.environ.get("WYE_PROMPT_GRAPHS") != "0",
    }


def model_of(options: argparse.Namespace) -> str | Path:
    """The model of `add_model_options`, as an engine takes it."""
    if options.shape:
        return f"shape:{options.shape}"
    from loadtests.models import locate

    return locate(options.model)


def _engine_table(info: EngineInfo, engine: dict[str, Any], memory: dict[str, float | None]) -> Table:
    table = Table(title="Engine", headers=["what", "value"])
    table.add("model", engine["model"])
    table.add("architecture", info.architecture)
    table.add("parameters, M", info.num_parameters / 1e6)
    table.add("device", info.device)
    table.add("step", info.step)
    table.add("dtype", info.dtype)
    table.add("K and V", info.kv_dtype)
    table.add("attention", info.attention_backend)
    table.add("KV pool, tokens", info.pool_tokens)
    table.add("KV pool, MiB", engine["pool_mib"])
    if engine["prompt_graphs"]:
        table.add("steps with prompts", "recorded")
    table.add("load, s", info.load_s)
    table.add("start, s", engine["start_s"])
    table.add("peak memory, MiB", memory["peak_rss_mib"])
    table.add("of that after loading, MiB", memory["peak_rss_after_load_mib"])
    if memory["peak_gpu_mib"] is not None:
        table.add("peak GPU memory, MiB", memory["peak_gpu_mib"])
    return table


def _width_table(rows: Sequence[dict[str, Any]]) -> Table:
    first = rows[0]
    table = Table(
        title=f"{first['prompt_tokens']}-token prompts, {first['output_tokens']} tokens each, submitted together",
        headers=[
            "width",
            "prefill tokens/s",
            "decode tokens/s",
            "TTFT p50, ms",
            "TPOT p50, ms",
            "step, ms",
            "floor, ms",
        ],
    )
    keys = ("width", "prefill_tokens_per_s", "decode_tokens_per_s", "ttft_ms", "tpot_ms", "step_ms", "floor_ms")
    for row in rows:
        table.add(*(row.get(key) for key in keys))
    return table


def _prefill_table(rows: Sequence[dict[str, Any]]) -> Table:
    headers = ["prompts at once", "tokens of each", "all first tokens, ms", "prefill tokens/s"]
    table = Table(title="Prompts alone", headers=headers)
    for row in rows:
        table.add(row["prompts"], row["prompt_tokens"], row["ttft_ms"], row["prefill_tokens_per_s"])
    return table


if __name__ == "__main__":
    sys.exit(main())
