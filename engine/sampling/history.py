"""Device memory that only some sequences need: rows of one width, handed out and taken back."""

from __future__ import annotations

import torch


class RowPool:
    """Rows of one tensor, given to whoever needs one; grows when asked for more than it has.

    Attributes:
        rows: [capacity, width], replaced when the pool grows: fetch it anew for every use.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros((0, width), dtype=dtype, device=device)
        self._free: list[int] = []

    @property
    def num_taken(self) -> int:
        """Rows in use."""
        return len(self.rows) - len(self._free)

    def take(self) -> int:
        """Hands out a row of zeros and returns its index."""
        if not self._free:
            self._resize(max(1, 2 * len(self.rows)), self.rows.shape[1])
        index = self._free.pop()
        self.rows[index].zero_()
        return index

    def give_back(self, index: int) -> None:
        """Takes back a row that `take` handed out."""
        self._free.append(index)

    def ensure_width(self, width: int) -> None:
        """Widens all rows to at least `width`, keeping what they hold."""
        if width > self.rows.shape[1]:
            self._resize(len(self.rows), max(width, 2 * self.rows.shape[1]))

    def _resize(self, num_rows: int, width: int) -> None:
        old = self.rows
        self.rows = old.new_zeros((num_rows, width))
        self.rows[: old.shape[0], : old.shape[1]] = old
        self._free.extend(reversed(range(old.shape[0], num_rows)))
