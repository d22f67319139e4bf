"""How long a server takes to be ready, kernels still to be compiled or kept: `python -m loadtests.start`.

python -m loadtests.start --model /tmp/qwen3-random --device cuda --warm 3

The first start finds an empty kernel cache, the others what the first left in it. A CPU compiles nothing at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests.client import Target, complete
from loadtests.results import report
from loadtests.server import running_server
from loadtests.tables import Table
from loadtests.workload import Lengths, Workload

CACHES = {"TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer"}
"""Where libraries keep compiled kernels, and the directory here."""


def started(options: argparse.Namespace, caches: Path, log_path: Path) -> dict[str, Any]:
    """One start, and the first answers after it.

    Raises:
        ServerFailed: The server did not become ready.
        RuntimeError: It did not answer.
    """
    environment = {name: str(caches / directory) for name, directory in CACHES.items()}
    args = ["--device", options.device, *options.serve_args.split()]
    before_mib = size_mib(caches)
    with running_server(
        options.model, args=args, environment=environment, log_path=log_path, timeout_s=options.timeout
    ) as server:
        target = Target.parse(server.url, server.model)
        workload = Workload(num_requests=2, prompt=Lengths.parse("128"), output=Lengths.parse("16"), seed=1)
        first, second = (asyncio.run(complete(target, request)) for request in workload.requests())
        for outcome in (first, second):
            if outcome.error:
                raise RuntimeError(f"the server started but did not answer: {outcome.error}")
        return {
            "kernels_before_mib": before_mib,
            "kernels_mib": size_mib(caches),
            "ready_s": server.ready_s,
            "first_ttft_ms": first.ttft_s * 1000,
            "second_ttft_ms": second.ttft_s * 1000,
        }


def size_mib(directory: Path) -> float:
    """MiB of all files in a directory; 0 where there is none."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 2**20


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.start", description="Measure how long a server takes to be ready."
    )
    parser.add_argument("--model", default="smollm2-135m", help="model to serve")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--warm", type=int, default=2, help="starts after the first")
    parser.add_argument("--serve-args", default="", help="further options of the server, as one string")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a start may take")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    table = Table(
        title="From the command to ready",
        headers=["kernels kept before, MiB", "after, MiB", "ready, s", "first TTFT, ms", "second TTFT, ms"],
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="wye-start-") as directory:
        for _ in range(1 + options.warm):
            rows.append(started(options, Path(directory) / "kernels", Path(directory) / "server.log"))
            table.add(*rows[-1].values())
    report(
        [table],
        {"model": options.model, "starts": rows},
        json_path=options.json,
        markdown=options.markdown,
        device=options.device,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
