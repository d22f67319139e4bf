"""A flashinfer that computes on a CPU: takes the arguments of its modules and attends as its kernels document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.attention.flashinfer_library import Family, Form, Module


class SlowModule:
    """Kernels of one form, in plain arithmetic; what they are given is checked as far as the real ones would read it.

    Attributes:
        plans: Rows and lanes of each plan made, in order.
        runs: How many calls attended.
    """

    def __init__(self, form: Form, processors: int) -> None:
        self._form = form
        self._processors = processors
        self.plans: list[tuple[int, int]] = []
        self.runs = 0

    def plan(self, *args: Any) -> Sequence[int]:
        """Writes the contexts that it was made for into both buffers, as the real one does with its pieces of work."""
        floats, integers, locked, query_starts, page_starts, context_lens, rows, lanes, heads, kv_heads, size = args[
            :11
        ]
        captured, dim_qk, dim_v, causal, window_left = args[11:16]
        assert args[16:] == ((-1, False, 0) if self._form.family == "fa2" else ())
        assert (captured, dim_qk, dim_v, causal) == (False, self._form.head_dim, self._form.head_dim, True)
        assert (window_left >= 0) <= self._form.has_window
        assert floats.dtype == integers.dtype == locked.dtype == torch.uint8
        for array in (query_starts, page_starts, context_lens):
            assert array.dtype == torch.int32
            assert array.is_contiguous()
        assert (len(query_starts), len(page_starts), len(context_lens)) == (lanes + 1, lanes + 1, lanes)
        assert rows == query_starts[-1]
        assert heads % kv_heads == 0
        assert torch.equal(page_starts.diff(), -(-context_lens // size))
        self.plans.append((rows, lanes))
        splits = lanes * kv_heads < 2 * self._processors and bool((context_lens > 128).any())
        pages = page_starts.diff().contiguous().view(torch.uint8)
        locked[: len(pages)] = pages
        integers[: len(pages)] = locked[: len(pages)]
        if self._form.family == "fa3":
            return [lanes]
        return [lanes, rows, *[0] * 12, int(splits)]

    def paged_run(self, *args: Any) -> None:
        """Attends lane by lane."""
        self.runs += 1
        _, integers, info, query, keys, values, starts, page_starts, pages, last_lens, out = args[:11]
        lse, mask_mode, layout, window_left, _, bits, bit_starts = args[11:18]
        cap, scale = args[22:24]
        assert (lse, layout, cap) == (None, 0, 0.0)
        assert info[0] == len(last_lens)
        assert out.is_contiguous()
        assert query.stride(-1) == 1
        counts = page_starts.diff()
        planned = integers[: 4 * len(counts)].view(torch.int32)
        if self._form.family == "fa3" or info[14]:
            assert torch.equal(planned, counts.int())
        group = query.shape[1] // keys.shape[2]
        for lane in range(len(last_lens)):
            own = pages[page_starts[lane] : page_starts[lane + 1]].long()
            context = int((len(own) - 1) * keys.shape[1] + last_lens[lane])
            rows = slice(int(starts[lane]), int(starts[lane + 1]))
            lane_keys, lane_values = (
                half[own].flatten(0, 1)[:context].float().repeat_interleave(group, 1) for half in (keys, values)
            )
            num_rows = rows.stop - rows.start
            distance = context - num_rows + torch.arange(num_rows)[:, None] - torch.arange(context)
            if mask_mode == 2:
                taken = bits[int(bit_starts[lane]) : int(bit_starts[lane + 1])]
                unpacked = (taken[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
                visible = unpacked.flatten()[: num_rows * context].view(num_rows, context).bool()
            else:
                assert mask_mode == 1
                visible = distance >= 0
            if window_left >= 0:
                assert self._form.has_window
                visible &= distance <= window_left
            scores = torch.einsum("nhd,chd->hnc", query[rows].float(), lane_keys) * scale
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            out[rows] = torch.einsum("hnc,chd->nhd", weights, lane_values).to(out.dtype)


class SlowLibrary:
    """What `FlashInfer` is on a GPU, with `SlowModule` for kernels.

    Args:
        families: Kernels that it has.
        processors: Of the GPU that it plans for.
    """

    def __init__(self, families: tuple[Family, ...] = ("fa2", "fa3"), processors: int = 1) -> None:
        self._families = families
        self._processors = processors
        self.modules: dict[Form, SlowModule] = {}

    def families(self, device: torch.device) -> tuple[Family, ...]:
        """Those it was made with."""
        return self._families

    def load(self, forms: Sequence[Form]) -> list[Module]:
        """Makes each form once."""
        assert not set(forms) & set(self.modules)
        self.modules.update({form: SlowModule(form, self._processors) for form in forms})
        return [self.modules[form] for form in forms]
