"""Where a decoder's projections lie in its products: q, k and v are one product, gate and up another.

Letters: T rows, K inputs, N outputs of one projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.models.config import ModelConfig

Site = Literal["qkv", "o", "gate_up", "down"]
"""A product of a layer."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix that an adapter may change.

    Attributes:
        site: The product it is part of.
        first, last: Its columns in the product's output, last excluded.
        num_inputs: K.
        name: Its name below `model.layers.N.`.
    """

    site: Site
    first: int
    last: int
    num_inputs: int
    name: str

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.last - self.first


def projections(config: ModelConfig) -> dict[str, Projection]:
    """The projections of a layer by their own names, as Hugging Face and PEFT call them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    found = (
        Projection("qkv", 0, query, hidden, "self_attn.q_proj"),
        Projection("qkv", query, query + key, hidden, "self_attn.k_proj"),
        Projection("qkv", query + key, query + 2 * key, hidden, "self_attn.v_proj"),
        Projection("o", 0, hidden, query, "self_attn.o_proj"),
        Projection("gate_up", 0, inner, hidden, "mlp.gate_proj"),
        Projection("gate_up", inner, 2 * inner, hidden, "mlp.up_proj"),
        Projection("down", 0, hidden, inner, "mlp.down_proj"),
    )
    return {one.name.rpartition(".")[2]: one for one in found}
