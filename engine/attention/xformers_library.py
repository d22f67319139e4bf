"""The xformers library, as far as it needs nothing but Triton: its split-K attention over pages.

xformers' own entry points look for its C++ part first, which is built for one version of torch and one of CUDA and
does not load beside others; then they refuse even operators that do not use it. The split-K operator is a Triton kernel
and is called directly here. Only one version is known to have it like this.

Letters: B lanes, n rows of each, T = B * n, G key/value heads, R query heads that share one, D head_dim, C context,
P pages, S page_size, W pages of the longest lane.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.cuda.caches import keep_kernels
from engine.errors import ModelLoadError

log = logging.getLogger(__name__)

VERSION = "0.0.35"
HEAD_DIMS = (16, 32, 64, 128, 256, 512)
DTYPES = (torch.bfloat16, torch.float16)
LEAST_PAGE = 16
"""Its kernel multiplies blocks of 16 keys at least, and a block lies in one page."""

MAX_ROWS = 16
"""Rows of a lane that the kernel can tell apart from one another."""

_UNSEEN = -1e30
"""Added to scores that a mask hides: low enough to weigh nothing, finite so that no difference is NaN."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PagedLanes:
    """B lanes of n rows each, on the device.

    Attributes:
        num_rows: n, at most `MAX_ROWS`; with more than one row the last one sees all, each before it one less.
        query_starts: [B + 1] int32.
        starts: [B + 1] int32, first position that a lane's one row sees; None where all are seen.
        ends: [B] int32, tokens that a lane's last row sees.
        tables: [B, W] int32.
    """

    num_rows: int
    query_starts: torch.Tensor
    starts: torch.Tensor | None
    ends: torch.Tensor
    tables: torch.Tensor


class SplitK(Protocol):
    """What the backend needs of xformers."""

    def attend(self, query: torch.Tensor, layer: torch.Tensor, lanes: PagedLanes, scale: float) -> torch.Tensor:
        """Attends lanes to pages.

        Args:
            query: [T, G, R, D].
            layer: K and V, [2, P, S, G, D].
            lanes: The lanes.
            scale: Factor on the scores.

        Returns:
            The shape of `query`.
        """
        ...

    def attend_masked(self, query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        """Attends one lane to K and V laid end to end.

        Args:
            query: [n, G, R, D]; any number of rows.
            kv: [2, C, G, D].
            mask: [n, C] bool, True is visible.
            scale: Factor on the scores.

        Returns:
            The shape of `query`.
        """
        ...


class XFormers:
    """The installed library.

    Raises:
        ModelLoadError: It is not installed, does not load, or is another version.
    """

    def __init__(self) -> None:
        keep_kernels()
        own_log = logging.getLogger("xformers")
        own_log.addFilter(_hides)  # its warning says that attention will not be available
        try:
            import xformers
            from xformers.ops.fmha import attn_bias, common, triton_splitk
        except ImportError as error:
            advice = f"`pip install --no-deps xformers=={VERSION}` adds it"
            raise ModelLoadError(f"attention backend 'xformers' does not load ({error}); {advice}") from None
        finally:
            own_log.removeFilter(_hides)
        if xformers.__version__ != VERSION:
            raise ModelLoadError(
                f"attention backend 'xformers' is made for xformers {VERSION}, but {xformers.__version__} is installed"
            )
        if triton_splitk.FwOp.OPERATOR is None:
            raise ModelLoadError("attention backend 'xformers' needs Triton and a GPU of capability 8.0 at least")
        if not xformers._has_cpp_library:
            log.info("xformers' C++ part does not load here; its Triton split-K attention, used here, does without it")
        self._bias, self._inputs, self._operator = attn_bias, common.Inputs, triton_splitk.FwOp
        self._operators: dict[int, Any] = {}

    def attend(self, query: torch.Tensor, layer: torch.Tensor, lanes: PagedLanes, scale: float) -> torch.Tensor:
        """See `SplitK`."""
        page_size = layer.shape[2]
        keys, values = layer.view(2, 1, -1, *layer.shape[3:]).unsqueeze(4).expand(-1, -1, -1, -1, query.shape[2], -1)
        bias = self._lanes_bias(lanes, page_size)
        return self._apply(page_size, query, keys, values, bias, scale)

    def attend_masked(self, query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        """See `SplitK`."""
        keys, values = kv.unsqueeze(1).unsqueeze(4).expand(-1, -1, -1, -1, query.shape[2], -1)
        bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, _UNSEEN)
        return self._apply(64, query, keys, values, bias.expand(1, *query.shape[1:3], -1, -1), scale)

    def _apply(
        self, page_size: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: Any, scale: float
    ) -> torch.Tensor:
        inputs = self._inputs(query=query.unsqueeze(0), key=keys, value=values, attn_bias=bias, scale=scale)
        output: torch.Tensor = self._with_blocks(page_size).apply(inputs, needs_gradient=False)[0]
        return output.view(query.shape)

    def _with_blocks(self, page_size: int) -> Any:
        """The operator, with blocks that fit into a page."""
        block = next(block for block in (64, 32, 16) if page_size % block == 0)
        if block not in self._operators:
            self._operators[block] = type(f"SplitK{block}", (self._operator,), {"BLOCK_N": block})
        return self._operators[block]

    def _lanes_bias(self, lanes: PagedLanes, page_size: int) -> Any:
        """What xformers calls a mask of pages. Its constructors build lists in Python and copy each; the kernel reads
        the tensors alone."""
        module = self._bias
        rows = {"max_seqlen": lanes.num_rows, "min_seqlen": lanes.num_rows, "seqstart_py": [0]}
        queries = module._SeqLenInfo(seqstart=lanes.query_starts, **rows)
        width = lanes.tables.shape[1] * page_size
        seen = {"max_seqlen": width, "min_seqlen": 0, "seqstart_py": [0], "seqlen": lanes.ends, "seqlen_py": []}
        if lanes.starts is not None:
            kind = module.PagedBlockDiagonalGappyKeysMask
            keys = module._GappySeqInfo(seqstart=lanes.starts, **seen)
        else:
            kind = (
                module.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
                if lanes.num_rows > 1
                else module.PagedBlockDiagonalPaddedKeysMask
            )
            keys = module._PaddedSeqLenInfo(seqstart=lanes.query_starts, padding=width, **seen)
        return kind(q_seqinfo=queries, k_seqinfo=keys, block_tables=lanes.tables, page_size=page_size)


def describe_xformers() -> tuple[bool, str]:
    """What of the installed library works here.

    Returns:
        Whether all of it loads, and what there is to say, for people.

    Raises:
        ImportError: It does not load at all.
    """
    import xformers
    from xformers import _cpp_lib
    from xformers.ops import fmha

    error = getattr(_cpp_lib, "_cpp_library_load_exception", None)
    usable = sorted({op.NAME for op in fmha.ALL_FW_OPS if op.is_available()})
    note = "loads"
    if error is not None:
        reason = " ".join(str(error).split())[:200]
        note = f"its C++/CUDA part does not load ({reason}), and its own entry points refuse all attention"
    if xformers.__version__ != VERSION:
        return False, f"{note}; the attention backend is made for version {VERSION} and refuses others"
    if "triton_splitKF" not in usable:
        return False, f"{note}; its Triton split-K kernel, which the attention backend uses, finds no Triton or no GPU"
    works = (
        "the attention backend works, by its Triton split-K kernel alone: decoding, prefill in blocks of "
        f"{MAX_ROWS} rows, windows and masks; pages of {LEAST_PAGE} tokens or a multiple, no int8 or fp8 K and V"
    )
    return error is None, f"{note}; {works}; operators that can run: {', '.join(usable)}"


def _hides(_: logging.LogRecord) -> bool:
    """A filter that lets nothing through."""
    return False
