"""The tensors that hold K and V: one per layer, pages of consecutive slots.

Letters: P pages, S page_size, G key/value heads, D head_dim.
Slots of one page, and of pages with consecutive numbers, are contiguous, so a run of pages is a view without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch


class KVStorage:
    """K and V of all layers on one device.

    Attributes:
        num_pages, page_size, num_kv_heads, head_dim: Shape.
        layers: One [2, P, S, G, D] tensor a layer; index 0 is K, 1 is V.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = device
        shape = (2, num_pages, page_size, num_kv_heads, head_dim)
        self.layers = [_zeros(shape, dtype, device) for _ in range(num_layers)]
        self._slots = [layer.view(2, num_pages * page_size, num_kv_heads, head_dim) for layer in self.layers]

    @staticmethod
    def page_bytes(*, num_layers: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers, K and V."""
        return 2 * num_layers * page_size * num_kv_heads * head_dim * dtype.itemsize

    def slots(self, layer: int) -> torch.Tensor:
        """K and V by slot: a [2, P * S, G, D] view."""
        return self._slots[layer]

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Stores new tokens' K and V.

        Args:
            layer: Which layer.
            key: [T, G, D].
            value: [T, G, D].
            slots: [T] int64, distinct.
        """
        view = self._slots[layer]
        view[0].index_copy_(0, slots, key.to(self.dtype))
        view[1].index_copy_(0, slots, value.to(self.dtype))

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole pages, (source, destination) each, in all layers (copy-on-write)."""
        if not copies:
            return
        sources = torch.tensor([source for source, _ in copies], device=self.device)
        destinations = torch.tensor([destination for _, destination in copies], device=self.device)
        for layer in self.layers:
            layer.index_copy_(1, destinations, layer.index_select(1, sources))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU without touching the memory, so that pages of a large pool cost nothing before they are used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
