"""Looks at distributions on the device, with nothing that waits for it.

Letters: M lanes, V vocabulary, C chunks, K tokens kept.
"""

from __future__ import annotations

import torch
import triton

from engine.cuda.kernels.looks import look_chunks, look_rows
from engine.sampling.looks import MOST_LOOKED, NUM_WORDS

_BLOCK = 2048
"""Tokens of a chunk."""


class Looks:
    """What the kernels leave for each other and what they find, at addresses that stay; of one look at a time.

    Args:
        max_lanes: M at most.
        vocab_size: V.
        device: Where.

    Attributes:
        found: [M, `NUM_WORDS`] int32, see `engine.sampling.looks`; rows of lanes that nobody asked for are left alone.
    """

    def __init__(self, max_lanes: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._block = min(_BLOCK, max(MOST_LOOKED, triton.next_power_of_2(vocab_size)))
        self._num_chunks = triton.cdiv(vocab_size, self._block)
        size = max_lanes * self._num_chunks
        self._maxima = torch.empty(size, dtype=torch.float32, device=device)
        self._sums, self._moments = torch.empty_like(self._maxima), torch.empty_like(self._maxima)
        self._keys = torch.empty(size * MOST_LOOKED, dtype=torch.int64, device=device)
        self.found = torch.zeros((max_lanes, NUM_WORDS), dtype=torch.int32, device=device)

    def launch(self, logits: torch.Tensor, wanted: torch.Tensor, num_lanes: int, *, pdl: bool = False) -> None:
        """Starts a look.

        Args:
            logits: [at least M, V] float32, contiguous; NaN counts as -inf, +inf as a large number.
            wanted: [at least M] int32, 0 for lanes that nobody wants to see.
            num_lanes: M of this look.
            pdl: Kernels may begin before those in front of them have ended.
        """
        early = {"PDL": pdl, "launch_pdl": pdl}
        chunks = self._num_chunks
        between = self._maxima, self._sums, self._moments, self._keys
        look_chunks[(chunks, num_lanes)](
            *(logits, wanted, *between),
            C=chunks,
            V=self._vocab_size,
            K=MOST_LOOKED,
            BLOCK=self._block,
            num_warps=8,
            **early,
        )
        look_rows[(num_lanes,)](
            *(wanted, *between, self.found),
            C=chunks,
            CHUNKS=triton.next_power_of_2(chunks),
            KEYS=triton.next_power_of_2(chunks * MOST_LOOKED),
            V=self._vocab_size,
            K=MOST_LOOKED,
            num_warps=16,
            **early,
        )
