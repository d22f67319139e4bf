"""What an engine started here would choose: device, step, precision, attention, and why."""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

from gateway.doctor.report import Finding, Report

_DRIVER = Path("/proc/driver/nvidia/version")


def examine_devices(report: Report) -> bool:
    """Adds torch and its devices.

    Returns:
        Whether a CUDA device can be used.
    """
    try:
        import torch
    except Exception as error:  # a broken torch raises whatever its libraries raise
        report.add(
            "torch", {"version": "does not load"}, [Finding("problem", "torch", f"{type(error).__name__}: {error}")]
        )
        return False
    has_cuda = bool(torch.cuda.is_available())
    facts = {
        "version": torch.__version__,
        "built for CUDA": torch.version.cuda or "no",
        "CPU instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    findings = []
    driver = _driver_version()
    if driver is not None:
        facts["NVIDIA driver"] = driver
    if driver is not None and not has_cuda:
        reason = "this torch is built without CUDA" if torch.version.cuda is None else _cuda_failure(torch)
        findings.append(Finding("notice", "CUDA", f"there is an NVIDIA driver, but {reason}: models run on the CPU"))
    for index in range(torch.cuda.device_count() if has_cuda else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        facts[f"cuda:{index}"] = (
            f"{properties.name}, capability {properties.major}.{properties.minor}, "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free, {properties.multi_processor_count} multiprocessors"
        )
        if (properties.major, properties.minor) < (8, 0):
            findings.append(Finding("notice", f"cuda:{index}", "no bfloat16 in hardware: slow"))
    report.add("torch", facts, findings)
    return has_cuda


def examine_choices(report: Report) -> None:
    """Adds what `auto` would become, by asking the engine's own code."""
    try:
        from engine.attention.select import BACKENDS, choose_backend
        from engine.config import EngineConfig
        from engine.quantization.formats import dtype_name
        from engine.resolve import place

        placement = place(EngineConfig(model=""))
        forms = _decoding_forms(placement.max_num_seqs) if placement.step.is_cuda else None
        choice = choose_backend("auto", placement.device)
        kind = placement.device.type
        others = [
            name
            for name, row in sorted(BACKENDS.items())
            if name != choice.backend.name and (row.devices is None or kind in row.devices)
        ]
    except Exception as error:  # whatever is broken is broken for the engine too
        meaning = f"{type(error).__name__}: {error}"
        report.add("choices", {"engine": "does not load"}, [Finding("problem", "engine", meaning)])
        return
    step, is_cuda = placement.step, placement.device.type == "cuda"
    own = "the native step's own; torch would take " if step.is_native else ""
    facts = {
        "device": f"{placement.device} (" + ("a CUDA device is there)" if is_cuda else "no CUDA device can be used)"),
        "step": f"{step.step}{f' {step.form}' if step.form else ''} ({step.reason})",
        "weights": f"{placement.weights}; also there: {_formats('weights', placement.weights)}",
        "K and V": f"{dtype_name(placement.kv_dtype)}; also there: {_formats('kv', dtype_name(placement.kv_dtype))}",
        "attention": f"{own}{choice.backend.name} ({choice.reason}); also there: {', '.join(others) or 'none'}",
        "op forms": ", ".join(_op_forms()),
        "adapters": "by torch, beside the native step" if step.is_native else "by the same step",
        "tokens a step": str(placement.max_batch_tokens),
    }
    if forms is not None:
        facts["decoding steps"] = forms
    if not is_cuda:
        facts["threads"] = str(placement.num_threads)
    report.add("choices", facts)


def _decoding_forms(most: int) -> str:
    from engine.cuda.plan import describe_forms  # imports Triton, which is there where the CUDA step is

    return describe_forms(most)


def _formats(what: str, chosen: str) -> str:
    """Other formats of weights or of K and V that can be had here if asked for, each with what computes it."""
    from engine.config import EngineConfig, KVConfig, KVFormat, WeightFormat
    from engine.errors import ModelLoadError
    from engine.resolve import place

    configs = {
        "weights": {name: EngineConfig(model="", weights=name) for name in get_args(WeightFormat)},
        "kv": {name: EngineConfig(model="", kv=KVConfig(dtype=name)) for name in get_args(KVFormat)},
    }
    found = []
    for name, config in configs[what].items():
        if name in ("auto", chosen):
            continue
        try:
            found.append(f"{name} ({place(config).step.step})")
        except ModelLoadError:
            continue
    return ", ".join(found)


def examine_store(report: Report, home: Path) -> None:
    """Adds the models that are stored."""
    facts = {"directory": str(home)}
    findings = []
    try:
        from engine.sources.store import ModelStore

        models = ModelStore(home).list()
        for model in models:
            size = f"{model.manifest.size_bytes / 2**20:.0f} MiB"
            facts[model.name] = f"{model.manifest.format}, {size}, from {model.manifest.source}"
        if not models:
            meaning = "no model is stored here; `wye serve` and `wye models pull` fetch one"
            findings.append(Finding("notice", "model store", meaning))
    except Exception as error:  # an optional part must not hide the rest
        findings.append(Finding("notice", "model store", f"cannot be read: {type(error).__name__}: {error}"))
    existing = next(path for path in (home, *home.absolute().parents) if path.exists())
    facts["free disk"] = f"{shutil.disk_usage(existing).free / 2**30:.1f} GiB"
    report.add("model store", facts, findings)


def _op_forms() -> list[str]:
    import engine.ops

    return sorted(module.name for module in pkgutil.iter_modules(engine.ops.__path__))


def _driver_version() -> str | None:
    try:
        words = _DRIVER.read_text(encoding="utf-8").split()
        return next(word for word in words if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        pass
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.splitlines()[0].strip() if result.returncode == 0 and result.stdout else None


def _cuda_failure(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # any text of the driver is worth showing
        return str(error).splitlines()[0]
    return "torch sees no device"
