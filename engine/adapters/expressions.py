"""Adapters written as expressions in the language of device programs: `y + scale * (x @ a) @ b`.

Letters: T rows, K inputs, N outputs of a site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from engine.adapters.changes import Adapter, Change, Product
from engine.adapters.projections import Projection
from engine.errors import InvalidRequest
from engine.programs.adapters import PARTS, bind_adapter
from engine.programs.errors import ProgramError
from engine.programs.torch_form import DTYPES, BatchValues, TorchProgram
from engine.programs.types import Type
from engine.request import Matrix, ProgramSpec

GREATEST = 65504.0
"""What an expression gives stays within this, and is 0 where it is no number: what it makes must harm nobody else."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One ready to be computed on one device.

    Attributes:
        program: What is computed.
        parameters: [1, 1], [1, K], [1, N] or, of a matrix, [K, R], by name.
    """

    program: TorchProgram
    parameters: Mapping[str, torch.Tensor]

    def compute(self, inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """[T, N] float32 from what goes into a site [T, K] and what the model makes of it [T, N]."""
        values = BatchValues(lanes=(), others={"x": inputs.float(), "y": outputs.float()}, parameters=self.parameters)
        found = self.program.value(values).expand(outputs.shape)
        return torch.nan_to_num(found, nan=0.0, posinf=GREATEST, neginf=-GREATEST).clamp(-GREATEST, GREATEST)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpressionChange(Change):
    """A change of one site by an expression.

    Attributes:
        expression: That.
    """

    expression: Expression

    def apply(self, inputs: torch.Tensor, outputs: torch.Tensor, product: Product) -> torch.Tensor:
        """See `Change.apply`."""
        del product
        return self.expression.compute(inputs, outputs)


def expression_changes(
    program: ProgramSpec,
    site: str,
    targets: Sequence[Projection],
    layers: Sequence[int],
    loaded: Mapping[str, Adapter],
    device: torch.device,
) -> dict[int, list[Change]]:
    """What an expression does to a site, by layer.

    Layers in which an adapter that it takes parts from has none are left alone.

    Args:
        program: The expression, and what it is given.
        site: Its name.
        targets: The projections of the site, side by side in one product.
        layers: Which layers.
        loaded: Adapters by name.
        device: Where steps are computed.

    Raises:
        InvalidRequest: It is no expression, or its matrices do not fit.
    """
    # Two projections side by side are one: what they are of one row lies together.
    whole = replace(targets[0], last=targets[-1].last)
    if len(targets) > 1 and any(isinstance(value, str) for value in program.parameters.values()):
        raise InvalidRequest(f"parts of an adapter belong to one projection, not to {site}", "adapter")
    takes_parts = any(isinstance(value, str) for value in program.parameters.values())
    found: dict[int, list[Change]] = {}
    ready: Expression | None = None
    programs: dict[int, TorchProgram] = {}
    for layer in layers:
        if ready is None or takes_parts:
            values = _values(program, layer, whole, loaded)
            if values is None:
                continue
            ready = _ready(program, values, whole, device, programs)
        found[layer] = [ExpressionChange(projection=whole, expression=ready)]
    if not found:
        raise InvalidRequest(f"the adapter that parts are taken from has none of them at {site} there", "adapter")
    return found


def _values(
    program: ProgramSpec, layer: int, projection: Projection, loaded: Mapping[str, Adapter]
) -> dict[str, Any] | None:
    """Parameters with the matrices and vectors of a layer; None if an adapter has none there."""
    values: dict[str, Any] = {}
    for name, value in program.parameters.items():
        values[name] = _part(name, value, layer, projection, loaded) if isinstance(value, str) else value
        if values[name] is None:
            return None
    return values


def _part(
    name: str, text: str, layer: int, projection: Projection, loaded: Mapping[str, Adapter]
) -> torch.Tensor | None:
    adapter, _, part = text.rpartition(".")
    if adapter not in loaded or part not in PARTS.get(loaded[adapter].kind, ()):
        raise InvalidRequest(f"parameter `{name}` names no part of a loaded adapter: {text[:80]!r}", "adapter")
    for change in loaded[adapter].layers[layer].get(projection.site, ()):
        if change.projection == projection:
            return _part_of(change, part)
    return None


def _part_of(change: Change, part: str) -> torch.Tensor | None:
    """[K, R] or [R, N] float32 of a matrix, [N] of a vector."""
    if part == "bias":
        if change.gain is None:
            return None
        return torch.zeros_like(change.gain, dtype=torch.float32) if change.bias is None else change.bias.float()
    found = {"a": change.down, "b": change.up, "gain": change.gain}[part]
    return None if found is None else found.T.float() if found.dim() == 2 else found.float()


def _ready(
    program: ProgramSpec,
    values: Mapping[str, Any],
    projection: Projection,
    device: torch.device,
    programs: dict[int, TorchProgram],
) -> Expression:
    try:
        bound = bind_adapter(program.source, values, projection.num_inputs, projection.num_outputs)
    except ProgramError as error:
        raise InvalidRequest(f"the device program is not valid: {error}", "adapter") from None
    parameters = {name: _placed(bound.parameters[name], kind, device) for name, kind in bound.types}
    key = id(bound.graph)  # the same for the same shapes, and kept by what is made of it
    if key not in programs:
        programs[key] = TorchProgram(bound.graph, 1, device, native=False)
    return Expression(programs[key], parameters)


def _placed(value: Any, kind: Type, device: torch.device) -> torch.Tensor:
    """[1, 1], [1, K], [1, N] or [K, R]."""
    if isinstance(value, torch.Tensor):
        return value if value.dim() == 2 else value[None]
    if isinstance(value, Matrix):
        numbers = np.frombuffer(value.values, "<f4").reshape(value.rows, value.columns)
        return torch.from_numpy(numbers.copy()).to(device)
    return torch.tensor([value] if isinstance(value, list) else [[value]], dtype=DTYPES[kind.kind], device=device)
