"""What an engine takes of a device's memory beside the KV pool it was asked for: `python -m loadtests.memory`.

python -m loadtests.memory --shape qwen3-0.6b --device cuda --pool-mib 8192 32768 0 --widths 1 64 256

Every pool is that of a new process, whose use is told by the driver: kernels, graphs and the context are part of it,
which torch does not count. On a CPU it is what is resident.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from engine.config import KVConfig
from loadtests.driver import EngineDriver, PromptSource
from loadtests.fresh import in_fresh_process
from loadtests.offline import add_engine_options, add_model_options, engine_config, model_of, peak_memory_mib
from loadtests.results import report
from loadtests.tables import Table

_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8": 1}


def used_mib(device: str) -> float:
    """Memory in use: of the whole GPU, by whomever, or resident in this process.

    Raises:
        OSError: There is a GPU but no nvidia-smi, or it failed.
    """
    if not device.startswith("cuda"):
        resident: int = psutil.Process().memory_info().rss
        return resident / 2**20
    command = ["nvidia-smi", f"--id={device.partition(':')[2] or 0}", "--query-gpu=memory.used"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True, timeout=60
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"nvidia-smi does not tell how much memory is in use: {error}") from error
    return float(done.stdout.split()[0])


def measure(options: argparse.Namespace, pool_mib: int) -> dict[str, Any]:
    """One engine with one pool; 0 leaves its size to the engine. To be called in a new process."""
    before = used_mib(options.device)
    config = engine_config(options, model_of(options))
    kv: KVConfig = replace(config.kv, num_pages=None, pool_bytes=pool_mib * 2**20 or None)
    driver = EngineDriver(replace(config, kv=kv))
    info = driver.info
    started = used_mib(info.device)
    prompts = PromptSource(info.vocab_size, options.seed)
    for width in options.widths:
        driver.run(prompts.draw(width, options.prompt), options.output)
    after = used_mib(info.device)
    resident, allocated = peak_memory_mib(info.device)
    driver.close()
    pool = info.num_pages * info.page_bytes / 2**20
    weights = info.num_parameters * _BYTES[info.dtype] / 2**20
    return {
        "device": info.device,
        "step": info.step,
        "asked_mib": pool_mib or None,
        "pool_mib": pool,
        "weights_mib": weights,
        "used_after_start_mib": started - before,
        "used_after_work_mib": after - before,
        "beside_mib": after - before - pool - weights,
        "peak_allocated_mib": allocated,
        "peak_rss_mib": resident,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.memory", description="Measure what an engine takes beside its KV pool."
    )
    add_model_options(parser)
    parser.add_argument(
        "--pool-mib", type=int, nargs="+", default=[1024], help="KV pools; 0 is the engine's own choice"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8, 32], help="sequences decoded together")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--output", type=int, default=32, help="tokens to generate for each sequence")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    if options.device == "auto":
        parser.error("--device must name one, e.g. cuda or cpu")
    rows = [in_fresh_process(measure, options, pool_mib) for pool_mib in options.pool_mib]
    headers = ["pool asked, MiB", "pool", "weights", "used after start", "after work", "beside pool and weights"]
    table = Table(title="Memory beside the KV pool, MiB", headers=[*headers, "most that torch held"])
    for row in rows:
        table.add(
            row["asked_mib"] or "its own",
            row["pool_mib"],
            row["weights_mib"],
            row["used_after_start_mib"],
            row["used_after_work_mib"],
            row["beside_mib"],
            row["peak_allocated_mib"],
        )
    report(
        [table],
        {"model": str(model_of(options)), "widths": options.widths, "rows": rows},
        json_path=options.json,
        markdown=options.markdown,
        device=rows[0]["device"],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
