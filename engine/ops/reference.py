"""What the small operations of a decoder mean, in plain torch; every faster form is tested against these.

Letters: T tokens, H heads, D head_dim, E hidden_size, I intermediate_size.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scales each row to unit mean square (arXiv 1910.07467).

    Args:
        hidden: [T, E] float32.
        weight: [E] float32.
        eps: Added to the mean square.

    Returns:
        [T, E] float32.
    """
    return functional.rms_norm(hidden, weight.shape, weight, eps)


def head_norm(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scales each head to unit mean square, each by its own weight.

    Args:
        heads: [T, H, D].
        weight: [H, D] float32.
        eps: Added to the mean square.

    Returns:
        [T, H, D] float32.
    """
    return functional.rms_norm(heads.float(), heads.shape[-1:], eps=eps).mul_(weight)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Applies rotary positions (arXiv 2104.09864), halves of a head paired as Hugging Face does.

    Args:
        heads: [T, H, D] float32 or bfloat16, q and k together.
        cos: [T, 1, D] float32.
        sin: [T, 1, D] float32, the first half negated.

    Returns:
        [T, H, D] float32.
    """
    exact = heads.float()
    return torch.addcmul(exact * cos, exact.roll(exact.shape[-1] // 2, -1), sin)


def gated_silu(gate_up: torch.Tensor) -> torch.Tensor:
    """Computes silu(gate) * up (arXiv 2002.05202).

    Args:
        gate_up: [T, 2I], gate first.

    Returns:
        [T, I], same dtype.
    """
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)
