"""When a guess is worth its row.

A step of w rows takes about `a * (1 + r * w)`: reading the weights, and `r` of that for each row. Without a guess a
token costs `a * (1 / w + r)`; a guess that is right with probability p saves that, and costs `a * r`. So it must be
right with `p > r * w / (1 + r * w)`, which is little for one sequence, whose rows are nearly free, and much for many.
"""

from __future__ import annotations

_ROW_COSTS = {
    "native amx": 0.05,
    "native avx512bf16": 0.09,
    "native avx512vnni": 0.1,
    "torch cpu": 0.2,
    "torch cuda": 0.01,
}
"""Measured: what one more row adds to a step of one, as a share of it (`python -m loadtests.offline`)."""

_OTHER_COST = 0.2
_BYTE_FACTOR = 2.0
"""Weights of one byte are read in half the time, so that rows cost twice as much beside it; not by torch alone."""


def row_cost(step: str, device: str, dtype: str) -> float:
    """The `r` of an engine.

    Args:
        step: What computes its steps, as `EngineInfo.step` has it.
        device: Where.
        dtype: Of its weights.
    """
    name = f"{step} {device.partition(':')[0]}" if step == "torch" else step
    return _ROW_COSTS.get(name, _OTHER_COST) * (_BYTE_FACTOR if dtype in ("int8", "fp8") and step != "torch" else 1.0)


def least_probability(cost: float, num_rows: int) -> float:
    """With which probability a guess must be right to be worth its row, in a step of `num_rows` others."""
    return cost * num_rows / (1 + cost * num_rows)
