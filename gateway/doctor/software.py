"""Python, our dependencies and their versions."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from gateway.doctor.kernels import examine_kernels, installed
from gateway.doctor.report import Finding, Report

ENGINE_PACKAGES = ("torch", "numpy", "safetensors", "msgspec", "pyzmq", "gguf", "tokenizers", "jinja2", "psutil")
"""Without one of these the engine does not run."""

GATEWAY_PACKAGES = (
    *("fastapi", "sse-starlette", "uvicorn", "uvloop", "httptools", "httpx", "pydantic", "pydantic-settings"),
    *("prometheus-client", "typer", "rich", "huggingface-hub"),
)
"""Without one of these `wye serve` or `wye models` does not run."""


def examine_software(report: Report, home: Path, *, has_cuda: bool) -> None:
    """Adds Python, dependencies, and optional kernel libraries.

    Args:
        report: Added to.
        home: Wye's directory.
        has_cuda: Whether a CUDA device is there: without one nobody misses kernels for it.
    """
    report.add(
        "python",
        {
            "version": platform.python_version(),
            "executable": sys.executable,
            "system": platform.platform(),
            "wye": installed("wye") or "not installed (running from a source tree)",
        },
        _python_findings(),
    )
    _examine_packages(report, "engine packages", ENGINE_PACKAGES, "the engine does not run without it")
    _examine_packages(report, "gateway packages", GATEWAY_PACKAGES, "`wye serve` and `wye models` need it")
    examine_kernels(report, home, has_cuda=has_cuda)


def _python_findings() -> list[Finding]:
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return []
    return [Finding("problem", "python", "Wye runs on Python 3.11, 3.12 and 3.13")]


def _examine_packages(report: Report, title: str, packages: tuple[str, ...], meaning: str) -> None:
    versions = {name: installed(name) for name in packages}
    facts = {name: number or "missing" for name, number in versions.items()}
    report.add(title, facts, (Finding("problem", name, meaning) for name, number in versions.items() if number is None))
