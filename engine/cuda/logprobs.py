"""Log-probabilities of chosen and likeliest tokens: one kernel over the logits, and a selection instead of a sort.

Letters: R rows, V vocabulary, K alternatives, C chunks.
"""

from __future__ import annotations

import torch
import triton

from engine.cuda.kernels.outline import outline_chunks
from engine.sampling.logprobs import LEAST_LOGPROB, Logprobs

__all__ = ["gather_logprobs"]

_BLOCK = 2048


def gather_logprobs(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
    """Reports what `engine.sampling.logprobs.gather_logprobs` does. Waits for nothing, leaves logits alone.

    Args:
        logits: [R, V] float32; NaN counts as -inf, +inf as a large number.
        targets: [R] int64.
        num_top: K; more than V counts as V.
    """
    (num_rows, vocab_size), device = logits.shape, logits.device
    num_top = min(num_top, vocab_size)
    block = min(_BLOCK, max(32, triton.next_power_of_2(vocab_size)))
    num_chunks = triton.cdiv(vocab_size, block)
    maxima = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=device)
    sums, ranks = torch.empty_like(maxima), torch.empty_like(maxima, dtype=torch.int32)
    chosen = torch.empty(num_rows, dtype=torch.float32, device=device)
    keys = torch.empty((num_rows, vocab_size if num_top else 0), dtype=torch.int64, device=device)
    if num_rows:
        outline_chunks[(num_chunks, num_rows)](
            *(logits.contiguous(), targets.contiguous(), maxima, sums, ranks, chosen, keys),
            C=num_chunks,
            V=vocab_size,
            BLOCK=block,
            HAS_KEYS=num_top > 0,
        )
    total = (maxima + sums.log()).logsumexp(dim=-1)
    top_keys = keys.topk(num_top, dim=-1).values
    order = (top_keys >> 32).to(torch.int32)
    top_logits = (order ^ ((order >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return Logprobs(
        chosen=_finite(chosen - total),
        rank=ranks.sum(dim=-1) + 1,
        top_ids=vocab_size - 1 - (top_keys & 0xFFFFFFFF),
        top_logprobs=_finite(top_logits - total[:, None]),
    )


def _finite(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num_(nan=LEAST_LOGPROB, neginf=LEAST_LOGPROB).clamp_(min=LEAST_LOGPROB)
