"""Memory that the kernels of a draw hand to each other.

Letters: M lanes, C chunks.
"""

from __future__ import annotations

import torch
import triton

from engine.cuda.kernels.draw_config import draw_config


class DrawScratch:
    """That memory, at addresses that stay; of one draw at a time.

    Args:
        max_lanes: Most lanes of a draw, padding included.
        vocab_size: V.
        device: Where.
    """

    def __init__(self, max_lanes: int, vocab_size: int, device: torch.device) -> None:
        self.max_lanes = max_lanes
        chunks = max_lanes * triton.cdiv(vocab_size, draw_config(1, vocab_size).block)
        self.best = torch.empty(chunks, dtype=torch.float32, device=device)
        self.ids = torch.empty(chunks, dtype=torch.int32, device=device)
        self.rivals = torch.empty(chunks, dtype=torch.int32, device=device)
        self.cut_values = torch.empty(max_lanes, dtype=torch.float32, device=device)
        self.cut_ids = torch.empty(max_lanes, dtype=torch.int32, device=device)
