"""Python, our dependencies and their versions, and optional kernel libraries: whether they load, and if not why."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from gateway.doctor.report import Finding, Report

ENGINE_PACKAGES = ("torch", "numpy", "safetensors", "msgspec", "pyzmq", "gguf", "tokenizers", "jinja2", "psutil")
"""Without one of these the engine does not run."""

GATEWAY_PACKAGES = (
    *("fastapi", "sse-starlette", "uvicorn", "uvloop", "httptools", "httpx", "pydantic", "pydantic-settings"),
    *("prometheus-client", "typer", "rich", "huggingface-hub"),
)
"""Without one of these `wye serve` or `wye models` does not run."""

PROBES = {
    "triton": "import triton, triton.language",
    "flashinfer": "import flashinfer; from flashinfer import BatchDecodeWithPagedKVCacheWrapper",
    "xformers": """
import xformers
from xformers import _cpp_lib
from xformers.ops import fmha
error = getattr(_cpp_lib, "_cpp_library_load_exception", None)
usable = sorted({op.NAME for op in fmha.ALL_FW_OPS if op.is_available()})
note = "attention operators that can run: " + (", ".join(usable) or "none")
if error is not None:
    impaired = True
    note = "its C++/CUDA part does not load (" + " ".join(str(error).split())[:300] + "); " + note
""",
}
"""Code that imports an optional kernel library; it may set `note`, and `impaired` where a part of it does not load."""

_MEANING = {
    "triton": "Triton kernels cannot be used",
    "flashinfer": "attention on CUDA uses another backend; `pip install 'wye[cuda]'` adds it",
    "xformers": "its attention backend cannot be used; `pip install 'wye[xformers]'` adds it where it fits torch",
}
_PROBE_TIMEOUT_S = 120


def examine_software(report: Report, *, has_cuda: bool) -> None:
    """Adds Python, dependencies, and optional kernel libraries.

    Args:
        report: Added to.
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
    _examine_kernels(report, has_cuda=has_cuda)


def installed(package: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def probe(package: str) -> tuple[bool, str]:
    """Loads an optional library in a process of its own, where it may crash.

    Returns:
        Whether all of it loads, and what there is to say about it.
    """
    code = f"note, impaired = 'loads', False\n{PROBES[package]}\nimport json; print(json.dumps([not impaired, note]))"
    try:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"does not load within {_PROBE_TIMEOUT_S} s"
    if result.returncode == 0:
        is_whole, note = json.loads(result.stdout.splitlines()[-1])
        return bool(is_whole), str(note)
    if result.returncode < 0:
        return False, f"crashes while loading (signal {-result.returncode})"
    return False, "does not load: " + next(reversed(result.stderr.strip().splitlines()), "it says nothing")


def _python_findings() -> list[Finding]:
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return []
    return [Finding("problem", "python", "Wye runs on Python 3.11, 3.12 and 3.13")]


def _examine_packages(report: Report, title: str, packages: tuple[str, ...], meaning: str) -> None:
    versions = {name: installed(name) for name in packages}
    facts = {name: number or "missing" for name, number in versions.items()}
    report.add(title, facts, (Finding("problem", name, meaning) for name, number in versions.items() if number is None))


def _examine_kernels(report: Report, *, has_cuda: bool) -> None:
    facts, findings = {}, []
    for package in PROBES:
        number = installed(package if package != "flashinfer" else "flashinfer-python")
        if number is None:
            facts[package] = "not installed"
            problem = "not installed"
        else:
            is_whole, note = probe(package)
            facts[package] = f"{number}, {note}"
            problem = "" if is_whole else note
        if problem and has_cuda:
            findings.append(Finding("notice", package, f"{problem}: {_MEANING[package]}"))
    report.add("optional kernels", facts, findings)
