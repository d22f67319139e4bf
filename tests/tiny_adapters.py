"""Small random adapters as PEFT saves them, and the plain models that they make of a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from engine.config import AdapterSource

Kind = Literal["lora", "rslora", "dora", "ia3"]
KINDS: tuple[Kind, ...] = ("lora", "rslora", "dora", "ia3")

ALL_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FEEDFORWARD = ("o_proj", "up_proj", "down_proj")
"""Modules whose inputs the IA3 here scales: one alone in its product, one that shares it."""

_PREFIX = "base_model.model."
_ALPHA = 6.0
_MODULE_ALPHA = 3.0
"""Of k_proj, by a pattern."""


def write_tiny_adapter(
    directory: Path,
    model: Path,
    kind: Kind,
    *,
    name: str = "",
    seed: int = 0,
    rank: int = 4,
    modules: tuple[str, ...] = ALL_MODULES,
    spread: float = 0.5,
    **overrides: Any,
) -> AdapterSource:
    """Writes a random adapter for a model directory.

    Args:
        directory: Made if it does not exist.
        model: A directory made by `write_tiny_model`.
        kind: What kind of adapter.
        name: Of the adapter; that of the directory if empty.
        seed: Of its tensors.
        rank: Of a LoRA's products.
        modules: What it changes, in every layer.
        spread: How much.
        **overrides: Keys of adapter_config.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for weight, base in _projections(model, modules).items():
        module = _PREFIX + weight.removesuffix(".weight")
        if kind == "ia3":
            is_input = weight.split(".")[-2] in FEEDFORWARD
            shape = (1, base.shape[1]) if is_input else (base.shape[0], 1)
            tensors[f"{module}.ia3_l"] = 1.0 + spread * torch.randn(shape, generator=generator)
            continue
        tensors[f"{module}.lora_A.weight"] = torch.randn(rank, base.shape[1], generator=generator)
        tensors[f"{module}.lora_B.weight"] = spread * 0.1 * torch.randn(base.shape[0], rank, generator=generator)
        if kind == "dora":
            lengths = torch.linalg.vector_norm(base, dim=1)
            noise = torch.randn(len(lengths), generator=generator)
            tensors[f"{module}.lora_magnitude_vector"] = lengths * (1.0 + 0.5 * spread * noise)
    config = _config(kind, rank, modules) | overrides
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, directory / "adapter_model.safetensors")
    return AdapterSource(name=name or directory.name, path=str(directory))


def write_merged_model(directory: Path, model: Path, adapter: AdapterSource) -> Path:
    """Writes the plain model that a model and an adapter of `write_tiny_adapter` make together."""
    shutil.copytree(model, directory)
    config = json.loads((Path(adapter.path) / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(Path(adapter.path) / "adapter_model.safetensors")
    weights = load_file(model / "model.safetensors")
    for name in list(weights):
        module = _PREFIX + name.removesuffix(".weight")
        if f"{module}.ia3_l" in tensors:
            scale = tensors[f"{module}.ia3_l"]
            weights[name] = weights[name] * scale
            bias = name.removesuffix("weight") + "bias"
            if bias in weights and scale.shape[1] == 1:
                weights[bias] = weights[bias] * scale.flatten()
        elif f"{module}.lora_A.weight" in tensors:
            weights[name] = _merged(weights[name], module, tensors, config)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _merged(base: torch.Tensor, module: str, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> torch.Tensor:
    down, up = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
    alpha = config["alpha_pattern"].get(module.rpartition(".")[2], config["lora_alpha"])
    rank = down.shape[0]
    changed: torch.Tensor = base + alpha / (rank**0.5 if config["use_rslora"] else rank) * up @ down
    magnitudes = tensors.get(f"{module}.lora_magnitude_vector")
    if magnitudes is not None:
        changed = changed * (magnitudes / torch.linalg.vector_norm(changed, dim=1))[:, None]
    return changed


def _config(kind: Kind, rank: int, modules: tuple[str, ...]) -> dict[str, Any]:
    shared = {"base_model_name_or_path": "tiny", "task_type": "CAUSAL_LM", "target_modules": list(modules)}
    if kind == "ia3":
        return shared | {"peft_type": "IA3", "feedforward_modules": [name for name in FEEDFORWARD if name in modules]}
    return shared | {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": _ALPHA,
        "alpha_pattern": {"k_proj": _MODULE_ALPHA},
        "use_rslora": kind == "rslora",
        "use_dora": kind == "dora",
        "bias": "none",
        "modules_to_save": None,
        "lora_dropout": 0.05,
        "fan_in_fan_out": False,
    }


def _projections(model: Path, modules: tuple[str, ...]) -> dict[str, torch.Tensor]:
    weights = load_file(model / "model.safetensors")
    return {name: weights[name] for name in sorted(weights) if name.endswith(tuple(f"{one}.weight" for one in modules))}
