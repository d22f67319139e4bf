"""Adapters from their directories, checked against the model that they are to change.

Letters: K inputs, N outputs of a projection, R rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from engine.adapters.adapter_file import AdapterFile
from engine.adapters.changes import Adapter, Change
from engine.adapters.peft_config import PeftConfig
from engine.adapters.projections import Projection, Site, projections
from engine.config import AdapterSource
from engine.errors import ModelLoadError
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig

_PARTS = {"lora": {"lora_A", "lora_B"}, "ia3": {"ia3_l"}}
_MAGNITUDE = "lora_magnitude_vector"


def load_adapters(
    sources: Sequence[AdapterSource], checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
) -> list[Adapter]:
    """Loads adapters for a model.

    The base model's weights are read once more where an adapter has magnitudes (DoRA), which are measured by them.

    Args:
        sources: Names and directories; names differ.
        checkpoint: The model.
        dtype: In which the model's matrices are held.
        device: Where steps are computed.

    Raises:
        ModelLoadError: An adapter is damaged, asks for what is not supported, or does not fit the model.
    """
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ModelLoadError(f"two adapters are named {twice!r}")
    adapters = [load_adapter(source, checkpoint.config) for source in sources]
    if any(adapter.kind == "dora" for adapter in adapters):
        adapters = _measured(adapters, checkpoint, dtype)
    # Products in full precision cost little on a CPU; an accelerator multiplies in its own format.
    held = torch.float32 if device.type == "cpu" else dtype
    return [_placed(adapter, held, device) for adapter in adapters]


def load_adapter(source: AdapterSource, model: ModelConfig) -> Adapter:
    """Reads one adapter; the gains of a DoRA are its magnitudes still.

    Raises:
        ModelLoadError: See `load_adapters`.
    """
    directory = Path(source.path)
    if not directory.is_dir():
        raise ModelLoadError(f"adapter {source.name!r}: {directory}: no such directory")
    try:
        config, found = PeftConfig.read(directory), AdapterFile.read(directory)
        layers: list[dict[Site, list[Change]]] = [{} for _ in range(model.num_layers)]
        known = projections(model)
        for (layer, module), parts in sorted(found.modules.items()):
            where = f"{found.file}: layers.{layer}.{module}"
            projection = known.get(module.rpartition(".")[2])
            if projection is None or projection.name != module:
                raise ModelLoadError(f"{where}: a {model.architecture} model has no such projection")
            if layer >= model.num_layers:
                raise ModelLoadError(f"{where}: the model has {model.num_layers} layers{_made_for(config)}")
            change = _change(config, f"model.layers.{layer}.{module}", where, projection, parts)
            layers[layer].setdefault(projection.site, []).append(change)
    except ModelLoadError as error:
        raise ModelLoadError(f"adapter {source.name!r}: {error.message}") from None
    kind = "dora" if config.has_magnitudes else config.kind
    ranks = [one.down.shape[0] for one in _changes(layers) if one.down is not None]
    return Adapter(name=source.name, kind=kind, digest=found.digest, rank=max(ranks, default=0), layers=layers)


def _change(
    config: PeftConfig, module: str, where: str, projection: Projection, parts: dict[str, torch.Tensor]
) -> Change:
    """One module's change, its shapes checked."""
    wanted = _PARTS[config.kind] | ({_MAGNITUDE} if config.has_magnitudes else set())
    if parts.keys() != wanted:
        differing = ", ".join(sorted(parts.keys() ^ wanted))
        raise ModelLoadError(f"{where}: expected {', '.join(sorted(wanted))}; the difference is {differing}")
    num_inputs, num_outputs = projection.num_inputs, projection.num_outputs
    if config.kind == "ia3":
        scales_inputs = config.scales_inputs(module)
        expected = [1, num_inputs] if scales_inputs else [num_outputs, 1]
        _check(config, where, "ia3_l", parts["ia3_l"], expected)
        scale = parts["ia3_l"].flatten()
        return Change(
            projection=projection,
            input_scale=scale if scales_inputs else None,
            output_scale=None if scales_inputs else scale,
        )
    down, up = parts["lora_A"], parts["lora_B"]
    rank = down.shape[0]
    _check(config, where, "lora_A", down, [rank, num_inputs])
    _check(config, where, "lora_B", up, [num_outputs, rank])
    gain = parts.get(_MAGNITUDE)
    if gain is not None:
        gain = gain.flatten()
        _check(config, where, _MAGNITUDE, gain, [num_outputs])
    return Change(projection=projection, down=down, up=up * config.scale(module, rank), gain=gain)


def _check(config: PeftConfig, where: str, part: str, tensor: torch.Tensor, expected: list[int]) -> None:
    if list(tensor.shape) != expected or 0 in expected:
        raise ModelLoadError(
            f"{where}.{part} has shape {list(tensor.shape)}, the model needs {expected}{_made_for(config)}"
        )


def _made_for(config: PeftConfig) -> str:
    return f"; the adapter was made for {config.base!r}" if config.base else ""


def _measured(adapters: list[Adapter], checkpoint: Checkpoint, dtype: torch.dtype) -> list[Adapter]:
    """Divides the magnitudes of DoRAs by the lengths of the changed matrices' rows, reading the model once."""
    found = {(index, layer, change.projection.name): change for index, layer, change in _with_gains(adapters)}
    wanted = {f"model.layers.{layer}.{name}" for _, layer, name in found}
    for name, tensor in checkpoint.tensors(dtype, torch.device("cpu")):
        module, _, kind = name.rpartition(".")
        if module not in wanted:
            continue
        base = tensor.to(dtype).float()
        for (index, layer, projection), change in found.items():
            if f"model.layers.{layer}.{projection}" == module:
                found[index, layer, projection] = _with_base(change, kind, base)
    return [
        replace(
            adapter,
            layers=[
                {
                    site: [found.get((index, layer, change.projection.name), change) for change in changes]
                    for site, changes in sites.items()
                }
                for layer, sites in enumerate(adapter.layers)
            ],
        )
        for index, adapter in enumerate(adapters)
    ]


def _with_gains(adapters: Iterable[Adapter]) -> Iterable[tuple[int, int, Change]]:
    for index, adapter in enumerate(adapters):
        for layer, sites in enumerate(adapter.layers):
            for changes in sites.values():
                yield from ((index, layer, change) for change in changes if change.gain is not None)


def _with_base(change: Change, kind: str, base: torch.Tensor) -> Change:
    if kind == "bias":
        return replace(change, bias=base)
    assert change.gain is not None
    assert change.up is not None
    assert change.down is not None
    lengths = torch.linalg.vector_norm(base + change.up @ change.down, dim=1)
    return replace(change, gain=change.gain / lengths)


def _placed(adapter: Adapter, dtype: torch.dtype, device: torch.device) -> Adapter:
    def place(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device=device, dtype=dtype).contiguous()

    def placed(change: Change) -> Change:
        return Change(
            projection=change.projection,
            down=place(change.down),
            up=place(change.up),
            gain=place(change.gain),
            bias=place(change.bias),
            output_scale=place(change.output_scale),
            input_scale=place(change.input_scale),
        )

    layers = [{site: [placed(one) for one in changes] for site, changes in sites.items()} for sites in adapter.layers]
    return replace(adapter, layers=layers)


def _changes(layers: Iterable[dict[Site, list[Change]]]) -> Iterable[Change]:
    for sites in layers:
        for changes in sites.values():
            yield from changes
