"""The seam between models and attention kernels: plan once a step, run once a layer.

Letters: T tokens of the step, L lanes, H query heads, G key/value heads, D head_dim, P pages, S page_size.
A step is described on the host by `LaneLayout`; a backend turns it into whatever its kernel wants (`plan`), and each
layer then stores its new K and V and attends (`run`). Paged attention: arXiv 2309.06180.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch

from engine.attention.tables import LaneTables, flatten
from engine.kv.storage import KVStorage


class LaneLayout(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Where each lane's tokens lie, on the host.

    Attributes:
        query_starts: L + 1 offsets into the step's tokens; lane i owns rows query_starts[i]:query_starts[i + 1].
        context_lens: L numbers of tokens visible to the lane's last row, its own new ones included.
        block_tables: L page lists; token at position p lies in slot `table[p // S] * S + p % S`.
        slots: [T] int64 on the step's device, slot each new token's K and V are written to.
        masks: For lanes that see something else than all before them: [rows, context] bool, True is visible; None for
            the ordinary causal lane. Empty when no lane has one.
        flat: The same lists as arrays, by whoever has them already.
    """

    query_starts: Sequence[int]
    context_lens: Sequence[int]
    block_tables: Sequence[Sequence[int]]
    slots: torch.Tensor
    masks: Sequence[torch.Tensor | None] = ()
    flat: LaneTables | None = None

    @property
    def tables(self) -> LaneTables:
        """Starts, lengths and pages as flat int32 arrays; made anew by each call unless `flat` brings them."""
        if self.flat is not None:
            return self.flat
        return flatten(self.query_starts, self.context_lens, self.block_tables)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStep:
    """All that a model's layers need to attend in one step; passed through, never looked into.

    Attributes:
        backend: The kernel family.
        plan: What `backend.plan` returned.
        storage: K and V of all layers.
        slots: [T] int64.
        writes: The rows' K and V are to be stored; False where they are there already.
    """

    backend: AttentionBackend
    plan: Any
    storage: KVStorage
    slots: torch.Tensor
    writes: bool = True


class AttentionBackend(Protocol):
    """One family of attention kernels."""

    name: str

    def plan(self, layout: LaneLayout, storage: KVStorage) -> Any:
        """Prepares one step; what it returns is valid until the step has run."""
        ...

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: Any,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends to pages that already hold the step's own K and V.

        Args:
            layer: Which layer's pages to read.
            query: [T, H, D], the storage's `read_dtype`, rotated.
            storage: K and V.
            plan: What `plan` returned for this step.
            scale: Factor on the scores.
            sliding_window: Positions a row sees back, itself included, or None.

        Returns:
            [T, H, D], same dtype as `query`.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseRows:
    """Room for rotated rows of a step, for kernels that read rows one behind the other instead of pages.

    Attributes:
        query: [T + M, H, D], to be written: the step's rows, and M rows behind them.
        key: [M, G, D], to be written; [T, G, D] where M is 0.
        value: As `key`.
        targets: [T] int64, the row of `query` that each of the step's rows goes to: T + m for one whose K and V go to
            row m of `key` and `value`; None where M is 0 and all stay where they are.
        has_values: `value` holds what it should already.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    targets: torch.Tensor | None
    has_values: bool


@runtime_checkable
class DenseBackend(Protocol):
    """A backend that is spared a gather where whoever rotates a step's rows also leaves them as it wants them."""

    def dense_rows(self, plan: Any, qkv: torch.Tensor, storage: KVStorage) -> DenseRows | None:
        """Says how.

        Args:
            plan: What `plan` returned for this step.
            qkv: [T, (H + 2G) * D], what a layer's product gave: for its shape, and for V, which is not rotated.
            storage: K and V.

        Returns:
            What is to be written before `run_dense`; None if the step is one for `run`.
        """
        ...

    def run_dense(
        self,
        layer: int,
        rows: DenseRows,
        storage: KVStorage,
        plan: Any,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Like `AttentionBackend.run`, given what `dense_rows` asked for; pages hold the step's K and V too."""
        ...
