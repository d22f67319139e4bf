"""What an adapter does to the outputs of a product, for some rows of a step.

Letters: T rows of the adapter, K inputs, N outputs of one projection, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.adapters.projections import Projection, Site

Product = Callable[[torch.Tensor], torch.Tensor]
"""A whole product: [T, K] to outputs [T, *]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one projection `y = W x + b`:

        y' = b + gain * (W x' + up (down x))        with `gain` of a DoRA
        y' = output_scale * y                       of an IA3
        x' = input_scale * x                        of an IA3 in a feed-forward

    Attributes:
        projection: Which.
        down: [R, K], the LoRA's A.
        up: [N, R], its B times its strength.
        gain: [N], a DoRA's magnitudes by the lengths of the changed matrix's rows.
        bias: [N], the model's own, where there are both a gain and a bias.
        output_scale: [N].
        input_scale: [K].
    """

    projection: Projection
    down: torch.Tensor | None = None
    up: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    output_scale: torch.Tensor | None = None
    input_scale: torch.Tensor | None = None

    def apply(self, inputs: torch.Tensor, outputs: torch.Tensor, product: Product) -> torch.Tensor:
        """The changed outputs of the projection.

        Args:
            inputs: [T, K] of the product.
            outputs: [T, N], what the model alone makes of them.
            product: The model's product, for inputs that are changed before it.
        """
        if self.input_scale is not None:
            changed = product(inputs * self.input_scale.to(inputs.dtype))
            outputs = changed[:, self.projection.first : self.projection.last]
        if self.output_scale is not None:
            outputs = outputs * self.output_scale.to(outputs.dtype)
        if self.down is None or self.up is None:
            return outputs
        delta = functional.linear(functional.linear(inputs.to(self.down.dtype), self.down), self.up)
        if self.gain is None:
            return outputs + delta
        if self.bias is None:
            return (outputs + delta) * self.gain
        return self.bias + (outputs - self.bias + delta) * self.gain


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True)
class Adapter:
    """A loaded adapter, ready to compute with.

    Attributes:
        name: What clients call it.
        kind: `lora`, `dora` or `ia3`; `site` of what a pass has put together.
        digest: Differs for different content; part of the names of its KV pages.
        rank: Greatest rank of its products; 0 of an IA3.
        layers: Changes by layer and product; products that it leaves alone are absent.
        is_behind_plain: Rows have it whose history the model alone has computed.
    """

    name: str
    kind: str
    digest: str
    rank: int
    layers: Sequence[Mapping[Site, Sequence[Change]]]
    is_behind_plain: bool = False


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Rows of a step that have one adapter.

    Attributes:
        adapter: Which.
        rows: [T] int64, places in the step; None for all rows.
    """

    adapter: Adapter
    rows: torch.Tensor | None

    def change(self, layer: int, site: Site, product: Product, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Changes a product's outputs in place.

        Args:
            layer: Of which layer.
            site: Of which product.
            product: The model's own.
            inputs: [*, K], all rows of the step.
            outputs: [*, M], what the product made of them.
        """
        changes = self.adapter.layers[layer].get(site)
        if not changes:
            return
        inputs = inputs if self.rows is None else inputs.index_select(0, self.rows)
        own = outputs if self.rows is None else outputs.index_select(0, self.rows)
        for change in changes:
            first, last = change.projection.first, change.projection.last
            changed = change.apply(inputs, own[:, first:last], product).to(outputs.dtype)
            if self.rows is None:
                outputs[:, first:last] = changed
            else:
                outputs[:, first:last].index_copy_(0, self.rows, changed)
