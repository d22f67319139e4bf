"""cuDNN's attention through torch: what it takes, and whether it works here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage

LEAST_CAPABILITY = (9, 0)
"""Hopper: on what came before, our own kernels have not been found slower."""

DTYPES = (torch.bfloat16, torch.float16)

MOST_HEAD_DIM = 128

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Causal attention of query [B, H, N, D] to key and value [B, G, N, D] with a factor on the scores: [B, H, N, D].

Letters: B lanes, N rows of each, H query heads, G key/value heads, D head_dim.
"""


def attend_by_cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """See `Attend`; all on a GPU, heads or rows in any order.

    Raises:
        RuntimeError: cuDNN has nothing for this.
    """
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, False, 0.0, True, False, scale=scale
    )
    output: torch.Tensor = found[0]
    return output


def attend_by_torch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """See `Attend`; wherever torch attends, without cuDNN."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


def cudnn_refusal(device: torch.device) -> str | None:
    """Why cuDNN's attention cannot be had on a device that our own kernels run on; None if it can."""
    has_cudnn: bool = torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]
    if not has_cudnn or not hasattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention"):
        return "torch has no cuDNN here"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        found, needed = (".".join(map(str, numbers)) for numbers in (capability, LEAST_CAPABILITY))
        return f"compute capability {needed} is needed, and {found} is there"
    return None


def check_model(storage: KVStorage) -> None:
    """Looks at heads and dtypes.

    Raises:
        ModelLoadError: cuDNN does not take them.
    """
    if storage.format is not None or storage.dtype not in DTYPES:
        kind = str(storage.dtype).removeprefix("torch.")
        raise ModelLoadError(f"attention backend 'cudnn' takes bfloat16 or float16, not {kind}")
    if storage.head_dim % 8 or storage.head_dim > MOST_HEAD_DIM:
        raise ModelLoadError(
            f"attention backend 'cudnn' takes heads of up to {MOST_HEAD_DIM} numbers, a multiple of 8, "
            f"not of {storage.head_dim}"
        )


def try_library(attend: Attend, storage: KVStorage, num_heads: int, num_rows: int) -> None:
    """Attends once to rows of ones, which also loads the library.

    Args:
        attend: It.
        storage: K and V, for their shape.
        num_heads: Query heads.
        num_rows: Of the one lane.

    Raises:
        ModelLoadError: It does not work here.
    """
    query, key = (
        torch.ones((1, num_rows, heads, storage.head_dim), dtype=storage.dtype, device=storage.device).transpose(1, 2)
        for heads in (num_heads, storage.num_kv_heads)
    )
    try:
        found = attend(query, key, key, 1.0)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ModelLoadError(f"attention backend 'cudnn' does not work here: {reason}") from error
    if not torch.allclose(found.float(), query.float(), atol=0.02):
        raise ModelLoadError("attention backend 'cudnn' computes something else here than it should")
