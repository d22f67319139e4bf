"""Optional kernel libraries: whether they load, if not why, and what of them works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from gateway.doctor.report import Finding, Report

PROBES = {
    "triton": "import triton, triton.language",
    "flashinfer": """
from engine.attention.flashinfer_library import describe_flashinfer
is_whole, note = describe_flashinfer()
""",
    "xformers": """
import logging
logging.disable()
from engine.attention.xformers_library import describe_xformers
is_whole, note = describe_xformers()
""",
}
"""Code that imports an optional kernel library; it may set `note`, and `is_whole` where a part of it does not work."""

_MEANING = {
    "triton": "Triton kernels cannot be used",
    "flashinfer": "`--attention flashinfer` cannot be used; `pip install 'wye[cuda]'` adds it",
    "xformers": "`--attention xformers` cannot be used; `pip install --no-deps xformers==0.0.35` adds it",
}
_PACKAGES = {"flashinfer": "flashinfer-python"}
_PROBE_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Probe:
    """What a library said.

    Attributes:
        state: Whether all of it works, a part, or nothing.
        note: For people.
    """

    state: Literal["whole", "impaired", "broken"]
    note: str


def examine_kernels(report: Report, home: Path, *, has_cuda: bool) -> None:
    """Adds optional kernel libraries.

    Args:
        report: Added to.
        home: Wye's directory, where a server would keep compiled kernels.
        has_cuda: Whether a CUDA device is there: without one nobody misses kernels for it.
    """
    facts, findings = {}, []
    for package in PROBES:
        number = installed(_PACKAGES.get(package, package))
        found = Probe("broken", "not installed") if number is None else probe(package, home)
        facts[package] = found.note if number is None else f"{number}, {found.note}"
        if found.state != "whole" and has_cuda:
            meaning = f"{found.note}: {_MEANING[package]}" if found.state == "broken" else found.note
            findings.append(Finding("notice", package, meaning))
    report.add("optional kernels", facts, findings)


def installed(package: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def probe(package: str, home: Path) -> Probe:
    """Loads an optional library in a process of its own, where it may crash."""
    code = f"note, is_whole = 'loads', True\n{PROBES[package]}\nimport json; print(json.dumps([is_whole, note]))"
    try:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            env=os.environ | {"WYE_HOME": str(home.absolute())},
        )
    except subprocess.TimeoutExpired:
        return Probe("broken", f"does not load within {_PROBE_TIMEOUT_S} s")
    if result.returncode == 0:
        is_whole, note = json.loads(result.stdout.splitlines()[-1])
        return Probe("whole" if is_whole else "impaired", str(note))
    if result.returncode < 0:
        return Probe("broken", f"crashes while loading (signal {-result.returncode})")
    return Probe("broken", "does not load: " + next(reversed(result.stderr.strip().splitlines()), "it says nothing"))
