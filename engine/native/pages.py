"""K and V as the native step keeps them in its pages, for whoever reads them elsewhere; see `PageShape` in layout.h.

Letters: N slots, M pages, S page_size, G key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.kv.storage import KVStorage
from engine.models.step import StepInputs, StepModel

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


class TiledStorage(KVStorage):
    """The same pages for a model in torch that reads and writes what the native step keeps there.

    For attention that asks for nothing but `gather`; who looks into `layers` finds tiles.
    """

    def __init__(self, storage: KVStorage) -> None:
        """Takes pages in bfloat16 whose size, and that of heads, are multiples of a tile."""
        self.__dict__.update(storage.__dict__)

    def gather(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """See `KVStorage.gather`."""
        keys, values = self._tiles(layer)
        pages, tile, lane = self._places(slots)
        shape = (len(slots), self.num_kv_heads, self.head_dim)
        found = keys[pages, :, tile, :, lane, :], values[pages, :, tile, :, lane // 2, :, lane % 2]
        return torch.stack([one.reshape(shape) for one in found])

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """See `KVStorage.write`."""
        keys, values = self._tiles(layer)
        pages, tile, lane = self._places(slots)
        num_rows, num_heads, dim = key.shape
        keys[pages, :, tile, :, lane, :] = key.to(self.dtype).reshape(num_rows, num_heads, dim // 2, 2)
        values[pages, :, tile, :, lane // 2, :, lane % 2] = value.to(self.dtype).reshape(
            num_rows, num_heads, dim // TILE, TILE
        )

    def _tiles(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views K [P, G, S / 16, D / 2, 16, 2] and V [P, G, S / 16, D / 16, 8, 16, 2]."""
        heads, tiles, dim = self.num_kv_heads, self.page_size // TILE, self.head_dim
        keys, values = self.layers[layer]
        return (
            keys.view(-1, heads, tiles, dim // 2, TILE, 2),
            values.view(-1, heads, tiles, dim // TILE, TILE // 2, TILE, 2),
        )

    def _places(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pages, tiles of them and keys of those, [N] each."""
        inside = slots % self.page_size
        return slots // self.page_size, inside // TILE, inside % TILE


class OnNativePages:
    """A `StepModel` in torch for lanes whose history the native step has computed.

    Attributes:
        config: Of the model.
    """

    def __init__(self, model: StepModel) -> None:
        """Takes a model whose attention asks storage for nothing but `gather`."""
        self.config = model.config
        self._model = model

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step; see `StepModel.forward`."""
        storage = inputs.storage
        if storage.page_size % TILE == 0 and storage.head_dim % TILE == 0:
            inputs = replace(inputs, storage=TiledStorage(storage))
        return self._model.forward(inputs)
