"""The tensors that hold K and V: one per layer, pages of consecutive slots.

Letters: P pages, S page_size, G key/value heads, D head_dim, N slots.
Slots of one page, and of pages with consecutive numbers, are contiguous, so a run of pages is a view without a copy.
K and V may be kept in one byte a number with scales beside them; how is described in `engine.quantization`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.quantization.formats import format_of
from engine.quantization.kv import SCALE_DTYPE, KeySmoothing, decode, encode


class KVStorage:
    """K and V of all layers on one device.

    Attributes:
        num_pages, page_size, num_kv_heads, head_dim: Shape.
        dtype: As they are kept; int8 and float8_e4m3fn mean codes with scales.
        read_dtype: As attention takes them, and its queries.
        format: Of codes; None where K and V are kept as they are.
        layers: One [2, P, S, G, D] tensor a layer; index 0 is K, 1 is V.
        scales: One [2, P, G, S] bfloat16 tensor a layer; empty without codes.
        smoothing: What is taken out of keys before they are rounded; None without codes.
        paged: Every tensor that holds something of pages, page numbers in its second dimension: what whoever copies
            pages must copy.
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
        read_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocates; codes are read as float32 on a CPU and as bfloat16 elsewhere unless told otherwise."""
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = device
        self.format = format_of(dtype)
        self.read_dtype = read_dtype or _read_dtype(dtype, device)
        shape = (2, num_pages, page_size, num_kv_heads, head_dim)
        self.layers = [_zeros(shape, dtype, device) for _ in range(num_layers)]
        self._slots = [layer.view(2, num_pages * page_size, num_kv_heads, head_dim) for layer in self.layers]
        self.scales: list[torch.Tensor] = []
        self.smoothing: KeySmoothing | None = None
        self.paged = self.layers
        if self.format is not None:
            rows = (2, num_pages, num_kv_heads, page_size)
            self.scales = [_zeros(rows, SCALE_DTYPE, device) for _ in range(num_layers)]
            self.smoothing = KeySmoothing.none(num_layers, num_kv_heads, head_dim, device)
            # Bytes, because torch copies rows of those on every device.
            self.paged = [layer.view(torch.uint8) for layer in self.layers] + self.scales

    @staticmethod
    def page_bytes(*, num_layers: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers, K and V, scales included."""
        vector = head_dim * dtype.itemsize + (SCALE_DTYPE.itemsize if format_of(dtype) else 0)
        return 2 * num_layers * page_size * num_kv_heads * vector

    def slots(self, layer: int) -> torch.Tensor:
        """K and V by slot as they are kept: a [2, P * S, G, D] view."""
        return self._slots[layer]

    def gather(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """K and V of some slots, as they were written but for rounding.

        Args:
            layer: Which layer.
            slots: [N] int64.

        Returns:
            A copy [2, N, G, D] in `read_dtype`.
        """
        if self.smoothing is None:
            return self._slots[layer].index_select(1, slots)
        codes = self._slots[layer].view(torch.uint8).index_select(1, slots).view(self.dtype)
        values = decode(codes, self._slot_scales(layer, slots))
        values[0] = self.smoothing.restore(layer, values[0])
        return values.to(self.read_dtype)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Stores new tokens' K and V.

        Args:
            layer: Which layer.
            key: [T, G, D].
            value: [T, G, D].
            slots: [T] int64, distinct.
        """
        view = self._slots[layer]
        if self.format is None or self.smoothing is None:
            view[0].index_copy_(0, slots, key.to(self.dtype))
            view[1].index_copy_(0, slots, value.to(self.dtype))
            return
        pages, offsets = slots // self.page_size, slots % self.page_size
        for half, vectors in enumerate((self.smoothing.smooth(layer, key), value)):
            codes, scales = encode(vectors, self.format)
            view[half].view(torch.uint8).index_copy_(0, slots, codes.view(torch.uint8))
            self.scales[layer][half][pages, :, offsets] = scales

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole pages, (source, destination) each, in all layers (copy-on-write)."""
        if not copies:
            return
        sources = torch.tensor([source for source, _ in copies], device=self.device)
        destinations = torch.tensor([destination for _, destination in copies], device=self.device)
        for tensor in self.paged:
            tensor.index_copy_(1, destinations, tensor.index_select(1, sources))

    def _slot_scales(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """[2, N, G] bfloat16."""
        return self.scales[layer].transpose(2, 3)[:, slots // self.page_size, slots % self.page_size]


def _read_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if format_of(dtype) is None:
        return dtype
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU without touching the memory, so that pages of a large pool cost nothing before they are used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
