"""Other cuts of the kernels of a decoding step, one change away from the one that is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from engine.cuda.kernels.attention_config import AttentionConfig
from engine.cuda.kernels.gemv_configs import GemvConfig
from engine.cuda.kernels.matmul_configs import MatmulConfig
from engine.cuda.plan import DecodePlan

Cut = GemvConfig | MatmulConfig | AttentionConfig

PARTS = ("gate_up", "down", "qkv", "output", "head", "attention")
"""What a step is cut into, that which reads most weights first."""

_BOUNDS: Mapping[type[Cut], Mapping[str, tuple[int, int]]] = {
    GemvConfig: {"rows": (1, 16), "block_k": (256, 8192), "num_warps": (1, 16), "programs": (66, 2112)},
    MatmulConfig: {
        "block_n": (16, 256),
        "block_k": (32, 256),
        "k_slices": (1, 8),
        "split_k": (1, 16),
        "num_warps": (2, 8),
    },
    AttentionConfig: {"splits": (1, 32), "block": (16, 128), "heads": (1, 8), "num_warps": (2, 8)},
}
"""Fields that double and halve, and how far."""

_STAGES = range(1, 9)

_TRADES = (("rows", "block_k"), ("block_n", "block_k"), ("block_n", "num_warps"), ("k_slices", "block_k"))
"""Pairs of which one doubles while the other halves: as much in flight, of another form."""


def cut_of(plan: DecodePlan, part: str) -> Cut | None:
    """How a part is cut; None where the vendor's library computes it."""
    if part == "attention":
        return plan.attention
    products = plan.single or plan.narrow
    return None if products is None else getattr(products, part)


def with_cut(plan: DecodePlan, part: str, cut: Cut) -> DecodePlan:
    """The plan with one part cut another way."""
    change: dict[str, Any] = {part: cut}
    if part == "attention":
        return replace(plan, **change)
    if plan.single is not None:
        return replace(plan, single=replace(plan.single, **change))
    assert plan.narrow is not None
    return replace(plan, narrow=replace(plan.narrow, **change))


def neighbours(cut: Cut, part: str) -> Iterator[Cut]:
    """Cuts that differ in one field, or trade one for another; not all of them need compile."""
    bounds = dict(_BOUNDS[type(cut)])
    if isinstance(cut, GemvConfig) and part != "head":
        del bounds["programs"]
    if isinstance(cut, GemvConfig) and part == "head":
        del bounds["block_k"]  # it takes rows whole

    def scaled(**factors: float) -> Iterator[Cut]:
        values: dict[str, Any] = {name: int(getattr(cut, name) * factor) for name, factor in factors.items()}
        if all(bounds[name][0] <= value <= bounds[name][1] for name, value in values.items()):
            yield replace(cut, **values)

    for name in bounds:
        yield from scaled(**{name: 2})
        yield from scaled(**{name: 0.5})
    for one, other in _TRADES:
        if one in bounds and other in bounds:
            yield from scaled(**{one: 2, other: 0.5})
            yield from scaled(**{one: 0.5, other: 2})
    if not isinstance(cut, GemvConfig):
        for stages in (cut.num_stages - 1, cut.num_stages + 1):
            if stages in _STAGES:
                yield replace(cut, num_stages=stages)
    if isinstance(cut, MatmulConfig):
        for prefetch in ("none", "registers", "l2"):
            if prefetch != cut.prefetch:
                yield replace(cut, prefetch=prefetch)
        yield replace(cut, unrolled=not cut.unrolled)
