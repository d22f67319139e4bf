"""What kernels of decoding steps leave for each other: memory with fixed addresses, one set for all captured steps.

Letters: W most lanes of a step, V vocabulary, E hidden_size, H query heads, G key/value heads, D head_dim.
"""

from __future__ import annotations

import math

import torch

from engine.cuda.model import CudaModel
from engine.cuda.plan import DecodePlan

COUNTERS = 8192
"""Programs that may wait for others of their product or their lane; more than any configuration has."""


class DecodeBuffers:
    """Steps run one after the other, so all of them may use the same memory.

    Attributes:
        hidden: [W, E] float32, the residual stream.
        normed: [W, E], what the next product reads.
        squares: float32, partial sums of squares, for two products in turn.
        qkv, attended, gated: [W, ...], results of products.
        logits: [W, V] float32.
        workspace, counters: For programs that share a product; counters are zero between kernels.
        partials, lse, arrivals: The same for attention.
    """

    def __init__(self, model: CudaModel, plans: list[DecodePlan]) -> None:
        """Makes room for every one of some plans."""
        config, dtype, device = model.config, model.dtype, model.device
        rows = max(plan.rows for plan in plans)
        heads = config.num_heads * config.head_dim

        def make(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        self.hidden = make(rows, config.hidden_size, kind=torch.float32)
        self.normed = make(rows, config.hidden_size)
        self.qkv = make(rows, heads + 2 * config.num_kv_heads * config.head_dim)
        self.attended = make(rows, heads)
        self.gated = make(rows, config.intermediate_size)
        self.logits = make(rows, config.vocab_size, kind=torch.float32)
        most_parts = max(plan.rows * plan.most_parts for plan in plans)
        self.squares = [make(most_parts, kind=torch.float32) for _ in range(2)]
        self.workspace = make(max(plan.workspace_floats for plan in plans), kind=torch.float32)
        self.counters = make(COUNTERS, kind=torch.int32)
        splits = max(plan.rows * plan.attention.splits for plan in plans)
        self.partials = make(splits * heads)
        self.lse = make(splits * config.num_heads, kind=torch.float32)
        self.arrivals = make(max(COUNTERS, rows * config.num_kv_heads), kind=torch.int32)

    def squares_of(self, turn: int, rows: int, parts: int) -> torch.Tensor:
        """One of the two buffers of partial sums as [rows, parts]."""
        return self.squares[turn][: math.prod((rows, parts))].view(rows, parts)
