"""Two backends for one pool: our own kernels for most steps, others for steps of many prompt tokens.

Kernels that are fastest on long prompts ask more of the host for each launch, which a short step would wait for. One
H200, heads of 128 numbers: 16 prompts of 2,048 tokens take flashinfer's FlashAttention-3 584 us a layer and ours 898;
one such prompt takes a whole engine 23 ms with the former and 16 with the latter. cuDNN takes a part of a step only
(`engine.attention.cudnn`), and says itself which steps are worth it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from engine.attention.backend import AttentionBackend, DenseBackend, DenseRows, LaneLayout
from engine.attention.preparing import prepare_backend
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage

log = logging.getLogger(__name__)

LONG_STEP_TOKENS = 4096
"""Tokens of a step from which on the other backend is faster."""


@runtime_checkable
class PickyBackend(Protocol):
    """A backend that is faster on some steps of many tokens only."""

    def suits(self, layout: LaneLayout) -> bool:
        """Whether it is on this one."""
        ...


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """A step's plan, and whose it is."""

    backend: AttentionBackend
    plan: Any


class MixedBackend:
    """See `AttentionBackend`. The second backend is left out where it does not take the model or cannot be made ready.

    Attributes:
        name: Of both, once they are ready.

    Args:
        usual: Takes every step.
        make_long: Makes the backend for steps of many tokens.
    """

    def __init__(self, usual: AttentionBackend, make_long: Callable[[], AttentionBackend]) -> None:
        self._usual = usual
        self._make_long = make_long
        self._long: AttentionBackend | None = None
        self.name = usual.name

    def prepare(self, storage: KVStorage, num_heads: int, sliding_window: int | None) -> None:
        """Makes both ready.

        Raises:
            ModelLoadError: The usual backend does not take the model.
        """
        prepare_backend(self._usual, storage, num_heads, sliding_window)
        try:
            long = self._make_long()
            prepare_backend(long, storage, num_heads, sliding_window)
        except ModelLoadError as error:
            log.info("attention of long prompts by %s too: %s", self._usual.name, error)
        else:
            self._long = long
            self.name = f"{self._usual.name} and {long.name}"

    def chosen(self, layout: LaneLayout) -> AttentionBackend:
        """The backend that suits a step."""
        long = self._long
        if long is None or layout.query_starts[-1] < LONG_STEP_TOKENS:
            return self._usual
        if isinstance(long, PickyBackend):
            return long if long.suits(layout) else self._usual
        return self._usual if any(mask is not None for mask in layout.masks) else long

    def plan(self, layout: LaneLayout, storage: KVStorage) -> MixedPlan:
        """Plans a step with the backend that suits it; see `AttentionBackend.plan`."""
        backend = self.chosen(layout)
        return MixedPlan(backend, backend.plan(layout, storage))

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: MixedPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`."""
        return plan.backend.run(layer, query, storage, plan.plan, scale=scale, sliding_window=sliding_window)

    def dense_rows(self, plan: MixedPlan, qkv: torch.Tensor, storage: KVStorage) -> DenseRows | None:
        """Rows that the step's backend wants; see `DenseBackend.dense_rows`."""
        return plan.backend.dense_rows(plan.plan, qkv, storage) if isinstance(plan.backend, DenseBackend) else None

    def run_dense(
        self,
        layer: int,
        rows: DenseRows,
        storage: KVStorage,
        plan: MixedPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends to rows that were wanted; see `DenseBackend.run_dense`."""
        assert isinstance(plan.backend, DenseBackend)
        return plan.backend.run_dense(layer, rows, storage, plan.plan, scale=scale, sliding_window=sliding_window)
