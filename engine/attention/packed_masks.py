"""Masks as bits, lane after lane, as flashinfer reads them.

Letters: L lanes, B bytes of all their masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True, eq=False)
class PackedMasks:
    """Masks of some lanes.

    Attributes:
        bits: [B] uint8; bit i of a lane, from the lowest of its first byte, is row i // context, position i % context.
            A lane begins with a byte of its own.
        starts: [L + 1] int32, lane i's bytes are bits[starts[i]:starts[i + 1]].
    """

    bits: torch.Tensor
    starts: torch.Tensor


def pack_masks(masks: Sequence[torch.Tensor], device: torch.device) -> PackedMasks:
    """Packs masks [rows, context] bool, True is visible, wherever they lie; packed ones lie on the device."""
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=device)
    packed = []
    for mask in masks:
        flat = mask.to(device, non_blocking=True).flatten()
        bits = functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
        packed.append((bits * weights).sum(1, dtype=torch.uint8))
    starts = torch.tensor(list(accumulate(map(len, packed), initial=0)), dtype=torch.int32)
    return PackedMasks(torch.cat(packed), starts.to(device, non_blocking=True))
