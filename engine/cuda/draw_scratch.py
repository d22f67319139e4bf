"""Memory that the kernels of a draw hand to each other.

Letters: M lanes, C chunks, P peaks, of a vocabulary.
"""

from __future__ import annotations

import torch

from engine.cuda.kernels.draw_config import DrawConfig, draw_config


class DrawScratch:
    """That memory, at addresses that stay; of one draw at a time.

    Args:
        max_lanes: Most lanes of a draw, padding included.
        vocab_size: Tokens of the vocabulary.
        device: Where.
        config: How all draws are cut, instead of what is fast.

    Attributes:
        max_lanes: The same.
        best, ids, rivals: [M, C], what a chunk's best token scores, which it is, and how many come near.
        maxima, sums: [M, C], what is known of a chunk's logits.
        peaks, blocks: [M, P], greatest logits of some tokens each, and those that are looked at.
        candidates, candidate_ids: [M, capacity], logits and ids of tokens that may be drawn.
        cut_values, cut_ids: [M], the last tokens that lanes keep.
    """

    def __init__(
        self, max_lanes: int, vocab_size: int, device: torch.device, *, config: DrawConfig | None = None
    ) -> None:
        configs = [config] if config else [draw_config(lanes, vocab_size) for lanes in range(1, max_lanes + 1)]
        chunks = max_lanes * max(one.num_chunks(vocab_size) for one in configs)
        peaks = max_lanes * max(one.num_peaks(vocab_size) for one in configs)
        candidates = max_lanes * max(one.capacity for one in configs)

        def floats(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.float32, device=device)

        def ints(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.int32, device=device)

        self.max_lanes = max_lanes
        self.best, self.ids, self.rivals = floats(chunks), ints(chunks), ints(chunks)
        self.maxima, self.sums = floats(chunks), floats(chunks)
        self.peaks, self.blocks = floats(peaks), ints(peaks)
        self.candidates, self.candidate_ids = floats(candidates), ints(candidates)
        self.cut_values, self.cut_ids = floats(max_lanes), ints(max_lanes)
