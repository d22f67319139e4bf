"""What a result file says about where and when it was measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.tables import Table

PACKAGES = ("wye", "torch", "numpy", "transformers", "fastapi", "uvicorn", "uvloop")
_CPUINFO = Path("/proc/cpuinfo")
_VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
RESULTS = Path(__file__).parent / "results"


def environment(device: str | None = None) -> dict[str, Any]:
    """Machine, date and versions, for the head of a result file.

    Args:
        device: `cuda:N` adds the GPU's name; None or `cpu` does not touch CUDA.
    """
    described: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "vectors": _vectors(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }
    if device is not None and device.startswith("cuda"):
        import torch

        described["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return described


def report(
    tables: Sequence[Table],
    results: Mapping[str, Any],
    *,
    json_path: Path | None,
    markdown: bool = False,
    device: str | None = None,
) -> None:
    """Prints the tables and, if asked, writes results and environment to a file.

    Args:
        tables: Printed in order.
        results: JSON values.
        json_path: Where to write, or None.
        markdown: Print Markdown instead of aligned text.
        device: See `environment`.
    """
    for table in tables:
        text = f"### {table.title}\n\n{table.markdown()}" if markdown else table.text()
        print(f"\n{text}", flush=True)
    if json_path is not None:
        save(tables, results, json_path, device=device)
        print(f"\nwritten to {json_path}", flush=True)


def save(tables: Sequence[Table], results: Mapping[str, Any], path: Path, *, device: str | None = None) -> None:
    """Writes a result file, or what there is of it so far; whoever reads it meanwhile finds the whole of either.

    Args:
        tables: Shown in the docs in this order.
        results: JSON values.
        path: Where to; its directory is made.
        device: See `environment`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"environment": environment(device), **results, "tables": [table.to_json() for table in tables]}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _vectors() -> str | None:
    """The widest of what a processor's instructions multiply with, which its name need not tell."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return next((name for flag, name in _VECTORS.items() if flag in flags), None)


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (OSError, ValueError):
        return None
