"""Attention on NVIDIA GPUs by flashinfer: prefill by FlashAttention-3 kernels, the rest by FlashAttention-2 ones.

Lanes of a step fall into three parts, each one call a layer: *long* ones (prefill; arXiv 2407.08608), *short* ones
(decoding lanes and drafts, whose heads that share K and V are computed together) and *masked* ones. What does not
depend on the model's heads or window is made by `plan`, the rest by the first layer, behind whose first products
it hides.

Letters: T tokens, L lanes of a part, N their pages, H query heads, G key/value heads, D head_dim, S page_size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.backend import LaneLayout
from engine.attention.flashinfer_library import DTYPES, HEAD_DIMS, Family, FlashInfer, Form, Library, Module
from engine.attention.flashinfer_schedule import Heads, Schedule, Scheduler
from engine.attention.packed_masks import PackedMasks, pack_masks
from engine.attention.page_lists import Numbers, PageLists, take_lanes
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage

LONG_ROWS = 64
"""Rows that make a lane long: FlashAttention-3 takes 128 rows of one head at a time, even where there are fewer."""

_NHD, _CAUSAL, _CUSTOM = 0, 1, 2
"""Numbers of flashinfer's layout with slots before heads, and of its kinds of mask."""

PartKind = Literal["long", "short", "masked"]


@dataclass(kw_only=True, slots=True, eq=False)
class Part:
    """Lanes attended to in one call.

    Attributes:
        kind: Which of the three.
        family: Kernels that take it.
        lists: Rows and pages on the host.
        rows: [T] int64 on the device, its rows in the step where they are not consecutive.
        query_starts, page_starts, last_page_lens, pages: As in `lists`, on the device.
        masks: Of the masked part.
    """

    kind: PartKind
    family: Family
    lists: PageLists
    rows: torch.Tensor | None
    query_starts: torch.Tensor
    page_starts: torch.Tensor
    last_page_lens: torch.Tensor
    pages: torch.Tensor
    masks: PackedMasks | None = None


@dataclass(kw_only=True, slots=True)
class FlashInferPlan:
    """One step.

    Attributes:
        parts: Its lanes.
        schedules: Work of the parts, by window and number of heads, since the first layer that asked.
    """

    parts: list[Part]
    schedules: dict[tuple[int | None, int], list[Schedule]] = field(default_factory=dict)


class FlashInferBackend:
    """Attention by flashinfer; see `AttentionBackend`. Made for one pool of K and V.

    Raises:
        ModelLoadError: The library is not there, or not the one that this is made for.
    """

    name = "flashinfer"

    def __init__(self, library: Library | None = None) -> None:
        self._library = library or FlashInfer()
        self._modules: dict[Form, Module] = {}
        self._scheduler: Scheduler | None = None
        self._families: tuple[Family, ...] = ()
        self._starts_early = False

    def prepare(self, storage: KVStorage, num_heads: int, sliding_window: int | None) -> None:
        """Compiles and loads the kernels of a model, so that no step waits for a compiler.

        Raises:
            ModelLoadError: They do not take the model's heads or the dtype of K and V, or cannot be compiled here.
        """
        if storage.head_dim not in HEAD_DIMS or storage.dtype not in DTYPES:
            raise ModelLoadError(
                f"attention backend 'flashinfer' takes heads of {', '.join(map(str, HEAD_DIMS))} numbers in bfloat16 "
                f"or float16, not of {storage.head_dim} in {str(storage.dtype).removeprefix('torch.')}"
            )
        if num_heads % storage.num_kv_heads:
            raise ModelLoadError(f"{num_heads} query heads are no multiple of {storage.num_kv_heads} key/value heads")
        families = self._families_of(storage)
        self._load([Form(family, storage.dtype, storage.head_dim, sliding_window is not None) for family in families])

    def plan(self, layout: LaneLayout, storage: KVStorage) -> FlashInferPlan:
        """Cuts the lanes into parts and sends their lists to the device, one copy a part."""
        tables = layout.tables
        num_rows = np.diff(tables.query_starts)
        masked = np.zeros(len(num_rows), dtype=bool)
        for lane, mask in enumerate(layout.masks):
            masked[lane] = mask is not None
        long = num_rows >= LONG_ROWS
        if "fa3" not in self._families_of(storage):
            long[:] = False
        lanes: dict[PartKind, npt.NDArray[np.bool_]] = {
            "long": long & ~masked,
            "short": ~long & ~masked & (num_rows > 0),
            "masked": masked & (num_rows > 0),
        }
        parts = []
        for kind, chosen in lanes.items():
            if chosen.any():
                numbers: Numbers = np.flatnonzero(chosen)
                part = _send(kind, take_lanes(tables, numbers, storage.page_size), storage.device)
                if kind == "masked":
                    part.masks = pack_masks(
                        [mask for mask in layout.masks if mask is not None and len(mask)], storage.device
                    )
                parts.append(part)
        return FlashInferPlan(parts=parts)

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: FlashInferPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`."""
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        schedules = self._schedules(plan, storage, query, sliding_window)
        for part, schedule in zip(plan.parts, schedules, strict=True):
            if part.rows is not None:
                rows = query.index_select(0, part.rows)
                attended = torch.empty_like(rows)
                self._attend(part, schedule, rows, storage.layers[layer], attended, scale, sliding_window)
                output.index_copy_(0, part.rows, attended)
            else:
                assert isinstance(part.lists.rows, tuple)
                first, last = part.lists.rows
                self._attend(
                    part, schedule, query[first:last], storage.layers[layer], output[first:last], scale, sliding_window
                )
        return output

    def _attend(
        self,
        part: Part,
        schedule: Schedule,
        query: torch.Tensor,
        layer: torch.Tensor,
        output: torch.Tensor,
        scale: float,
        window: int | None,
    ) -> None:
        form = Form(part.family, layer.dtype, layer.shape[-1], window is not None)
        masks = (None, None) if part.masks is None else (part.masks.bits, part.masks.starts)
        self._modules[form].paged_run(
            schedule.floats,
            schedule.integers,
            schedule.info,
            query,
            layer[0],
            layer[1],
            part.query_starts,
            part.page_starts,
            part.pages,
            part.last_page_lens,
            output,
            None,  # no log-sums
            _CAUSAL if part.masks is None else _CUSTOM,
            _NHD,
            _window_left(part, window),
            self._starts_early,
            *masks,
            *(None, None, None, None),  # no ALiBi slopes, and nothing of scoring several items
            0.0,  # no cap on scores
            scale,
            *(None, None, None),  # no scales of 8-bit numbers
            1.0,
            1e4,  # nothing of rotation, which was done before
            0,
            schedule.floats.numel(),
        )

    def _schedules(
        self, plan: FlashInferPlan, storage: KVStorage, query: torch.Tensor, window: int | None
    ) -> list[Schedule]:
        """What each part's lanes were cut into, by the first layer that asks."""
        key = window, query.shape[1]
        if key not in plan.schedules:
            forms = [Form(part.family, storage.dtype, storage.head_dim, window is not None) for part in plan.parts]
            self._load(forms)
            if self._scheduler is None:
                self._scheduler = Scheduler(storage.device)
            heads = Heads(query.shape[1], storage.num_kv_heads, storage.head_dim, storage.page_size)
            plan.schedules[key] = [
                self._scheduler.schedule(
                    part.kind, self._modules[form], form.family, part.lists, heads, _window_left(part, window)
                )
                for part, form in zip(plan.parts, forms, strict=True)
            ]
        return plan.schedules[key]

    def _load(self, forms: Sequence[Form]) -> None:
        missing = [form for form in dict.fromkeys(forms) if form not in self._modules]
        if missing:
            self._modules.update(zip(missing, self._library.load(missing), strict=True))

    def _families_of(self, storage: KVStorage) -> tuple[Family, ...]:
        if not self._families:
            self._families = self._library.families(storage.device)
            # Programmatic launch: a kernel is set up while the one before it ends. From Hopper on.
            self._starts_early = (
                storage.device.type == "cuda" and torch.cuda.get_device_capability(storage.device)[0] >= 9
            )
        return self._families


def _window_left(part: Part, window: int | None) -> int:
    """Positions a row sees back, itself not included; -1 for all. A mask says all by itself."""
    return -1 if window is None or part.masks is not None or part.kind == "masked" else window - 1


def _send(kind: PartKind, lists: PageLists, device: torch.device) -> Part:
    """Copies a part's lists to the device in one go."""
    arrays = (lists.query_starts, lists.page_starts, lists.last_page_lens, lists.pages)
    sizes = [len(array) for array in arrays]
    # Torch's own page-locked memory is not given out again before the copy that reads it has run.
    host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate(arrays, out=host.numpy())
    query_starts, page_starts, last_page_lens, pages = torch.split(host.to(device, non_blocking=True), sizes)
    rows = None if isinstance(lists.rows, tuple) else torch.from_numpy(lists.rows).to(device, non_blocking=True)
    return Part(
        kind=kind,
        family="fa3" if kind == "long" else "fa2",
        lists=lists,
        rows=rows,
        query_starts=query_starts,
        page_starts=page_starts,
        last_page_lens=last_page_lens,
        pages=pages,
    )
