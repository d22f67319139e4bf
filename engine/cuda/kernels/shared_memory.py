"""How much shared memory a program may take, and what fits into it."""

from __future__ import annotations

import functools

import torch
import triton

_HOPPER_BYTES = 227 * 1024

_OTHER_BYTES = 12 * 1024
"""Left to what a program keeps beside its tiles."""


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Bytes a program may take; Hopper's where kernels are only interpreted or compiled."""
    if device.type != "cuda":
        return _HOPPER_BYTES
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def fitting_tiles(columns: int, row_bytes: int, num_stages: int, device: torch.device) -> tuple[int, int]:
    """Shrinks tiles of keys and of values, first their number, then their size, until they fit.

    Args:
        columns: Rows of a tile.
        row_bytes: Of a row.
        num_stages: Tiles of each kind.
        device: Where they must fit.

    Returns:
        Columns, 16 or more, and stages, one or more.
    """
    space = (shared_bytes(device) - _OTHER_BYTES) // (2 * row_bytes)
    while columns > 16 and columns > space:
        columns //= 2
    return columns, max(1, min(num_stages, space // columns))
