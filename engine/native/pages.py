"""K and V as the native step keeps them in its pages, for whoever reads them elsewhere; see `PageShape` in layout.h.

Letters: N slots, M pages, S page_size, G key/value heads, D head_dim.
"""

from __future__ import annotations

import torch

from engine.kv.storage import KVStorage

TILE = 16


def gather(storage: KVStorage, layer: int, slots: torch.Tensor) -> torch.Tensor:
    """K and V of a history that begins with a page.

    Args:
        storage: Written by the native step.
        layer: Which layer.
        slots: [N] int64, page by page, none left out.

    Returns:
        A copy [2, N, G, D] bfloat16.
    """
    size, num_heads, dim = storage.page_size, storage.num_kv_heads, storage.head_dim
    if size % TILE or dim % TILE:
        return storage.gather(layer, slots)
    keys, values = storage.layers[layer].index_select(1, slots[::size] // size)
    tiles = size // TILE
    # K [M, G, S / 16, D / 2, 16, 2] and V [M, G, S / 16, D / 16, 8, 16, 2], both to [M, S, G, D].
    keys = keys.reshape(-1, num_heads, tiles, dim // 2, TILE, 2).permute(0, 2, 4, 1, 3, 5)
    values = values.reshape(-1, num_heads, tiles, dim // TILE, TILE // 2, TILE, 2).permute(0, 2, 4, 6, 1, 3, 5)
    shape = (-1, num_heads, dim)
    return torch.stack((keys.reshape(shape)[: len(slots)], values.reshape(shape)[: len(slots)]))
