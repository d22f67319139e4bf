"""Ours beside llama.cpp and OpenVINO GenAI, on the same weights and shapes in one run: `python -m loadtests.peers`.

python -m loadtests.peers                       engines alone: decode at width 1, 8, 32; prompts of 512 and 2048 tokens
python -m loadtests.peers --http                servers: time to first token of one client, 32 streams together
python -m loadtests.peers --random-weights      either, where only the model's shape matters

llama.cpp is built on first use (minutes; needs cmake, ninja and a compiler) and kept in WYE_HOME/peers, with the GGUF
files it is given: the model's own, and that one requantised. OpenVINO GenAI takes part if it is installed there or
beside Wye, or with `--install-openvino`. Every round takes all contestants through each shape, the order turned round
each time; ratios are medians of the rounds' own ratios. How fast memory can be read is measured in the same rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import EngineError
from engine.sources.errors import SourceError
from loadtests.bandwidth import BYTES_PER_WEIGHT, MemoryProbe, ProbeFailed, compiled_probe, mebibytes, weights_read
from loadtests.contest import compete, shapes
from loadtests.llama_build import BuildFailed, ensure_llama
from loadtests.llama_peer import LlamaCpp, LlamaFailed
from loadtests.models import gguf_of, home
from loadtests.offline import add_engine_options
from loadtests.openvino_peer import OpenVinoFailed, find_python, install
from loadtests.peers_field import assembled, measured_name
from loadtests.peers_http import measure_servers
from loadtests.peers_tables import comparison_rows, comparison_table, limit_rows, limit_table
from loadtests.random_gguf import random_gguf
from loadtests.results import report
from loadtests.server import ServerFailed

FAILURES = (
    BuildFailed,
    EngineError,
    LlamaFailed,
    OpenVinoFailed,
    ProbeFailed,
    ServerFailed,
    SourceError,
    RuntimeError,
    ValueError,
)


def measure_engines(options: argparse.Namespace, model: Path, llama: LlamaCpp) -> None:
    """Everybody in turn, without servers; prints and writes the tables."""
    num_weights = weights_read(model)
    program = compiled_probe(home() / "peers")
    probes = {
        weights: MemoryProbe(program, llama.threads, mebibytes(num_weights * BYTES_PER_WEIGHT[weights]))
        for weights in options.formats
    }

    def probe_memory() -> None:
        for probe in probes.values():
            probe.measure()

    todo = shapes(options.widths, options.prompt, options.output, options.prefill)
    with assembled(options, model, llama) as field:
        rates = compete(field.entries(todo), options.rounds, probe_memory)
        comparisons = comparison_rows(rates, field)
        limits = limit_rows(rates, field, probes, num_weights)
        openvino = field.openvino
        steps = {weights: driver.info.step for weights, driver in field.drivers.items()}
    sizes = f"{options.prompt} tokens of context, {llama.threads} threads, {options.rounds} rounds"
    title = f"{measured_name(options)}, step {', '.join(dict.fromkeys(steps.values()))}: {sizes}"
    report(
        [comparison_table(comparisons, title, openvino), limit_table(limits, llama.threads)],
        {
            "peers": {"llama.cpp": str(llama.programs.name), "openvino": openvino},
            "random_weights": options.random_weights,
            "steps": steps,
            "threads": llama.threads,
            "rounds": options.rounds,
            "comparisons": comparisons,
            "limits": limits,
            "memory_gb_per_s": {weights: probe.rounds for weights, probe in probes.items()},
            "rates": {shape.label: of_shape.by_name for shape, of_shape in rates.items()},
        },
        json_path=options.json,
        markdown=options.markdown,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.peers", description="Measure Wye beside llama.cpp and OpenVINO GenAI, in one run."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name of a GGUF model, or a GGUF file")
    parser.add_argument(
        "--random-weights", action="store_true", help="keep only shapes, metadata and vocabulary of the model's file"
    )
    parser.add_argument("--http", action="store_true", help="measure servers instead of engines")
    parser.add_argument(
        "--formats", nargs="+", choices=["bfloat16", "int8"], default=["bfloat16", "int8"], help="our weights in memory"
    )
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 8, 32], help="sequences decoded together")
    parser.add_argument("--streams", type=int, default=32, help="with --http: streams at once")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--output", type=int, default=64, help="tokens to generate for each sequence")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048], help="prompt lengths measured alone")
    parser.add_argument("--rounds", type=int, default=5, help="medians are taken over as many rounds")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    parser.add_argument("--llama", type=Path, help="directory with llama.cpp's programs; default: build them")
    parser.add_argument("--openvino", type=Path, help="interpreter that has openvino-genai; default: look for one")
    parser.add_argument("--install-openvino", action="store_true", help="install openvino-genai into WYE_HOME/peers")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1, with a message, if somebody cannot take part."""
    options = _parser().parse_args(argv)
    options.threads = options.threads or len(os.sched_getaffinity(0))
    peers = home() / "peers"
    try:
        model = gguf_of(options.model)
        if options.random_weights:
            model = random_gguf(model, peers / "models")
        programs = options.llama.resolve() if options.llama else ensure_llama(peers)
        llama = LlamaCpp(programs=programs, threads=options.threads)
        if options.http:
            measure_servers(options, model, llama)
            return 0
        if options.install_openvino:
            options.openvino = install(peers)
        options.openvino = options.openvino or find_python(peers)
        measure_engines(options, model, llama)
    except FAILURES as error:
        print(f"loadtests.peers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
