"""Processor, memory, compilers: read from the system, with the standard library alone."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from engine.container import memory_limit, processor_share
from gateway.doctor.report import Finding, Report

_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "avx512_fp16": "AVX512-FP16",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "BF16",
    "i8mm": "I8MM",
}
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")


def examine_machine(report: Report) -> None:
    """Adds processor, memory and compilers."""
    _examine_processor(report)
    _examine_memory(report)
    _examine_compilers(report)


def _examine_processor(report: Report) -> None:
    info = _read(_CPUINFO)
    fields = {
        name.strip(): value.strip()
        for name, colon, value in (line.partition(":") for line in info.splitlines())
        if colon
    }
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    features = [label for flag, label in _FEATURES.items() if flag in flags]
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    facts = {
        "name": fields.get("model name") or platform.processor() or platform.machine(),
        "cores": f"{usable} of {total} may be used" + _quota(),
        "features": ", ".join(features) or "none of those we look for",
    }
    findings = []
    if flags and not ({"avx2", "asimd"} & flags):
        findings.append(Finding("notice", "processor", "without AVX2 a CPU step is very slow"))
    elif "avx512_bf16" not in flags and "amx_bf16" not in flags and "avx2" in flags:
        findings.append(
            Finding(
                "notice", "processor", "no bfloat16 instructions: --step torch may be faster with --weights float32"
            )
        )
    report.add("processor", facts, findings)


def _quota() -> str:
    share = processor_share()
    return "" if share is None else f", the container gets the time of {share:.1f}"


def _examine_memory(report: Report) -> None:
    kib = {}
    for line in _read(_MEMINFO).splitlines():
        name, _, value = line.partition(":")
        if value.split()[1:] == ["kB"]:
            kib[name] = int(value.split()[0])
    facts = {}
    if "MemTotal" in kib:
        facts["total"] = f"{kib['MemTotal'] / 2**20:.1f} GiB"
        facts["available"] = f"{kib.get('MemAvailable', 0) / 2**20:.1f} GiB"
    limit = memory_limit()
    if limit is not None:
        facts["limit of the container"] = f"{limit / 2**30:.1f} GiB"
    report.add("memory", facts or {"total": "unknown"})


def _examine_compilers(report: Report) -> None:
    compiler = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    facts = {"C++": f"{compiler} ({_first_line(compiler, '--version')})" if compiler else "none"}
    for name in ("nvcc", "ninja"):
        path = shutil.which(name)
        facts[name] = path or "none"
    findings = []
    if compiler is None:
        findings.append(Finding("notice", "C++ compiler", "none found: the native CPU step cannot be built here"))
    report.add("compilers", facts, findings)


def _first_line(program: str, *args: str) -> str:
    try:
        result = subprocess.run([program, *args], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return next(iter(result.stdout.splitlines()), "says nothing")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
