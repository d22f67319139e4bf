"""What flashinfer cuts lanes into, and the buffers that its `plan` fills.

`plan` writes to page-locked memory and starts its copy to the device. Several steps are on their way at once, so that
memory is only written again once the copy that reads it has run. What lies on the device is written in the stream's
order, after the kernels of the step before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.flashinfer_library import Family, Module
from engine.attention.page_lists import PageLists
from engine.attention.tables import Counts

_INTEGER_BYTES = 8 << 20
_LEAST_FLOAT_BYTES = 128 << 20
"""What flashinfer itself recommends."""

_BUFFERS = 3
"""Page-locked buffers a kind of work: more steps are not on their way at once."""

_SPLIT = 14
"""Place in a plan of `fa2` that says whether contexts are split among processors."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What kernels are told of a model.

    Attributes:
        num_heads: H.
        num_kv_heads: G.
        head_dim: D.
        page_size: S.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A part's work.

    Attributes:
        info: What `plan` returned.
        integers: The device buffer that it filled.
        floats: The device buffer for results of split contexts.
    """

    info: Sequence[int]
    integers: torch.Tensor
    floats: torch.Tensor


@dataclass(slots=True, eq=False)
class _Last:
    """The last plan of one kind of work: still right for a later step whose lanes have the same rows.

    Attributes:
        schedule: It.
        query_starts: Of its lanes.
        num_pages: Of each.
        is_whole: No context is split, and none would be if they were longer.
    """

    schedule: Schedule
    query_starts: Counts
    num_pages: Counts
    is_whole: bool

    def holds(self, lists: PageLists) -> bool:
        """Whether it is what flashinfer would plan for these lanes."""
        if not np.array_equal(lists.query_starts, self.query_starts):
            return False
        return self.is_whole or np.array_equal(np.diff(lists.page_starts), self.num_pages)


class _Buffers:
    """Memory of one kind of work."""

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self.integers = torch.empty(_INTEGER_BYTES, dtype=torch.uint8, device=device)
        self._locked = [
            torch.empty(_INTEGER_BYTES, dtype=torch.uint8, pin_memory=is_cuda)
            for _ in range(_BUFFERS if is_cuda else 1)
        ]
        self._copied = [torch.Event(device) for _ in self._locked] if is_cuda else []
        self._turn = 0
        self.last: _Last | None = None

    def take(self) -> torch.Tensor:
        """Page-locked memory that nothing reads any more."""
        self._turn = (self._turn + 1) % len(self._locked)
        if self._copied:
            self._copied[self._turn].synchronize()  # returns at once for an event that was never recorded
        return self._locked[self._turn]

    def sent(self) -> None:
        """Says that a copy from what was taken has been started."""
        if self._copied:
            self._copied[self._turn].record()


class Scheduler:
    """Plans parts of steps; one for each device and stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        )
        self._floats = torch.empty(0, dtype=torch.uint8, device=device)
        self._buffers: dict[Hashable, _Buffers] = {}

    def schedule(
        self, kind: str, module: Module, family: Family, lists: PageLists, heads: Heads, window_left: int
    ) -> Schedule:
        """Work of a part, valid until the next call for the same kind, heads and window.

        Args:
            kind: Which part of a step it is; each has memory of its own.
            module: Kernels that will take it.
            family: Theirs.
            lists: Its lanes.
            heads: Of the model.
            window_left: Positions a row sees back, itself not included; -1 for all.
        """
        key = kind, family, heads, window_left
        if key not in self._buffers:
            self._buffers[key] = _Buffers(self._device)
        buffers = self._buffers[key]
        if buffers.last is not None and buffers.last.holds(lists):
            return buffers.last.schedule
        schedule = Schedule(
            self._plan(module, family, lists, heads, window_left, buffers), buffers.integers, self._float_buffer(heads)
        )
        if family == "fa2":
            # Without a split there is one piece of work a lane, whatever the lane's length. FlashAttention-3's plan
            # names lengths.
            is_full = lists.num_lanes * heads.num_kv_heads >= 2 * self._processors
            is_whole = is_full and not schedule.info[_SPLIT]
            buffers.last = _Last(schedule, lists.query_starts, np.diff(lists.page_starts), is_whole)
        return schedule

    def _plan(
        self,
        module: Module,
        family: Family,
        lists: PageLists,
        heads: Heads,
        window_left: int,
        buffers: _Buffers,
    ) -> Sequence[int]:
        # No fixed size of a split, splits allowed, no processors set aside.
        splitting = (-1, False, 0) if family == "fa2" else ()
        info = module.plan(
            self._float_buffer(heads),
            buffers.integers,
            buffers.take(),
            torch.from_numpy(lists.query_starts),
            torch.from_numpy(lists.page_starts),
            torch.from_numpy(lists.context_lens),
            lists.num_rows,
            lists.num_lanes,
            heads.num_heads,
            heads.num_kv_heads,
            heads.page_size,
            False,  # not for a captured graph
            heads.head_dim,
            heads.head_dim,
            True,  # causal
            window_left,
            *splitting,
        )
        buffers.sent()
        return info

    def _float_buffer(self, heads: Heads) -> torch.Tensor:
        """Room for all pieces that contexts can be split into: two a processor, each at most 128 rows of a group.

        All parts share it: a stream's calls run one after another.
        """
        pieces = max(2 * self._processors // heads.num_kv_heads, 1)
        needed = pieces * 128 * heads.num_heads * (heads.head_dim + 1) * 4 + (1 << 20)
        if self._floats.numel() < needed:
            size = max(needed, _LEAST_FLOAT_BYTES if self._device.type == "cuda" else 0)
            self._floats = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._floats
