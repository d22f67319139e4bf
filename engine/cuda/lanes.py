"""What decoding lanes need of the host, in one block of device memory with a fixed address.

Letters: M lanes (padded), L lanes of the step, C columns of a table.
One copy a step brings it there. A captured step reads everything from it, so the same graph serves any lanes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.scheduling.batch import Lane

NO_ROW = -1
"""Row of a lane that is padding."""

NEWEST = -1
"""Token id of a lane that computes what its row drew last."""

_FIELDS = ("rows", "given", "positions", "context_lens", "draw_positions", "num_outputs", "looks")

_ALIGNMENT = 4
"""Fields begin at multiples of so many numbers, whatever the width: kernels are compiled anew for other addresses."""

_NO_PAGES = array("i")


class DecodeLanes:
    """Views into one block of int32 on the device.

    Attributes:
        width: M.
        columns: C, pages of the longest context that fits.
        packed: The block.
        rows: [M], rows of device state; `NO_ROW` for padding.
        given: [M], token ids to compute, or `NEWEST`.
        positions: [M], of those tokens.
        context_lens: [M], tokens seen, the own one included; 0 for padding.
        draw_positions: [M], index of the token to draw.
        num_outputs: [M], output tokens drawn before that.
        looks: [M], 1 where the distribution is wanted, else 0.
        tables: [M, C], page numbers.
    """

    def __init__(self, width: int, columns: int, device: torch.device) -> None:
        self.width = width
        self.columns = columns
        self.packed = torch.zeros(packed_size(width, columns), dtype=torch.int32, device=device)
        stride = _stride(width)
        parts = [self.packed[at * stride : at * stride + width] for at in range(len(_FIELDS))]
        self.rows, self.given, self.positions, self.context_lens = parts[:4]
        self.draw_positions, self.num_outputs, self.looks = parts[4:]
        self.tables = self.packed[len(_FIELDS) * stride :].view(width, columns)
        self.rows.fill_(NO_ROW)


def packed_size(width: int, columns: int) -> int:
    """Numbers in the block of `width` lanes."""
    return _stride(width) * len(_FIELDS) + width * columns


def _stride(width: int) -> int:
    return -(-width // _ALIGNMENT) * _ALIGNMENT


def uploaded_fields(values: Sequence[Sequence[int]], device: torch.device) -> list[torch.Tensor]:
    """Fields of lanes laid out as a recorded step's are: each [L] int32, in one copy that nobody waits for.

    Args:
        values: [any, L].
        device: Where to.
    """
    width = len(values[0])
    stride = _stride(width)
    host = torch.zeros((len(values), stride), dtype=torch.int32, pin_memory=device.type == "cuda")
    host.numpy()[:, :width] = values
    return [field[:width] for field in host.to(device, non_blocking=True)]


class LanePacker:
    """Lays out lanes as the block of a `DecodeLanes`; what is the same as at the last call stays where it is.

    Args:
        width: M.
        columns: C.
    """

    def __init__(self, width: int, columns: int) -> None:
        self._width = width
        self._block = np.zeros(packed_size(width, columns), dtype=np.int32)
        size = len(_FIELDS) * _stride(width)
        self._fields = self._block[:size].reshape(len(_FIELDS), -1)
        self._tables = self._block[size:].reshape(width, columns)
        self._pages = [_NO_PAGES] * width

    def pack(self, lanes: Sequence[Lane]) -> npt.NDArray[np.int32]:
        """Returns the block; it is valid until the next call.

        Args:
            lanes: L lanes of one token each, at most M, whose pages fit.
        """
        num_lanes = len(lanes)
        starts = [lane.start for lane in lanes]
        fields = self._fields
        fields[:, num_lanes:] = 0
        fields[0, num_lanes:] = NO_ROW
        fields[0, :num_lanes] = [lane.row for lane in lanes]
        fields[1, :num_lanes] = [
            NEWEST if lane.feeds_back else lane.sequence.token_ids[start]
            for lane, start in zip(lanes, starts, strict=True)
        ]
        fields[2, :num_lanes] = starts
        np.add(fields[2, :num_lanes], 1, out=fields[3, :num_lanes])
        fields[4] = fields[3]
        fields[5, :num_lanes] = [
            start + 1 - lane.sequence.num_prompt for lane, start in zip(lanes, starts, strict=True)
        ]
        fields[6, :num_lanes] = [lane.readout is not None for lane in lanes]
        known = self._pages
        for place, lane in enumerate(lanes):
            pages = lane.pages
            if pages != known[place]:
                self._tables[place, : len(pages)] = pages
                known[place] = pages
        return self._block
