"""How a decoding step of so many lanes and so long contexts is computed: which form, and how its kernels are cut.

1 lane        single   products of one row, norms within
2 to 64       narrow   products on tensor cores, each with its neighbours within
more          wide     the vendor's products, our kernels between them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from engine.cuda.kernels.attention_config import AttentionConfig, choose_attention
from engine.cuda.kernels.gemv_configs import GemvConfig, gemv_config
from engine.cuda.kernels.matmul_configs import MatmulConfig, choose_matmul, parts_of
from engine.cuda.model import CudaModel

StepForm = Literal["single", "narrow", "wide"]

MOST_NARROW = 64

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
"""Lanes that steps are captured for; others are filled up with padding."""

CONTEXTS = (512, 2048, 8192, 32768)
"""Longest contexts that steps are captured for, and the model's own."""


@dataclass(frozen=True, slots=True)
class SingleConfigs:
    """Cuts of the products of one lane."""

    qkv: GemvConfig
    output: GemvConfig
    gate_up: GemvConfig
    down: GemvConfig
    head: GemvConfig


@dataclass(frozen=True, slots=True)
class NarrowConfigs:
    """Cuts of the products of some lanes."""

    qkv: MatmulConfig
    output: MatmulConfig
    gate_up: MatmulConfig
    down: MatmulConfig
    head: MatmulConfig


@dataclass(frozen=True)
class DecodePlan:
    """One kind of step.

    Attributes:
        model: What is computed.
        width: Lanes.
        context: Tokens of the longest context that fits.
        attention: How attention is cut.
        single, narrow: How products are cut, in those forms.
    """

    model: CudaModel
    width: int
    context: int
    attention: AttentionConfig
    single: SingleConfigs | None = None
    narrow: NarrowConfigs | None = None

    @property
    def form(self) -> StepForm:
        """Which of the three."""
        if self.single is not None:
            return "single"
        return "wide" if self.narrow is None else "narrow"

    @cached_property
    def rows(self) -> int:
        """Rows of the buffers that its kernels see."""
        return padded_rows(self.width) if self.narrow is not None else self.width

    @property
    def first_parts(self) -> int:
        """Partial sums of squares that the embedding leaves; as many as a layer's last product does."""
        assert self.narrow is not None
        return parts_of(self.narrow.down, self.model.config.hidden_size)

    @property
    def most_parts(self) -> int:
        """Partial sums of squares that any product leaves."""
        if self.narrow is None:
            return 1
        size = self.model.config.hidden_size
        return max(parts_of(self.narrow.output, size), parts_of(self.narrow.down, size))

    @property
    def workspace_floats(self) -> int:
        """What programs that share a product leave for each other."""
        if self.narrow is None:
            return 1
        config, chosen = self.model.config, self.narrow
        sizes = (
            chosen.qkv.workspace_floats((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, self.rows),
            chosen.output.workspace_floats(config.hidden_size, self.rows),
            chosen.gate_up.workspace_floats(2 * config.intermediate_size, self.rows),
            chosen.down.workspace_floats(config.hidden_size, self.rows),
        )
        return max(1, *sizes)


def make_plan(model: CudaModel, width: int, context: int) -> DecodePlan:
    """Chooses the form and the cuts of a step.

    Args:
        model: What is computed.
        width: Lanes.
        context: Tokens of the longest context.
    """
    config = model.config
    attention = choose_attention(width, context, config.num_heads, config.num_kv_heads)
    layer, head = model.weights.layers[0], model.weights.head
    if width == 1:
        single = SingleConfigs(
            qkv=gemv_config("norm", layer.qkv),
            output=gemv_config("residual", layer.output),
            gate_up=gemv_config("gated", layer.gate_up),
            down=gemv_config("residual", layer.down),
            head=gemv_config("head", head),
        )
        return DecodePlan(model, width, context, attention, single=single)
    if width > MOST_NARROW:
        return DecodePlan(model, width, context, attention)
    rows = padded_rows(width)
    narrow = NarrowConfigs(
        qkv=choose_matmul("qkv", layer.qkv.shape[0], layer.qkv.shape[1], rows, layer.qkv.dtype),
        output=choose_matmul("output", layer.output.shape[0], layer.output.shape[1], rows, layer.output.dtype),
        gate_up=choose_matmul("gate_up", layer.gate_up.shape[0], layer.gate_up.shape[1], rows, layer.gate_up.dtype),
        down=choose_matmul("down", layer.down.shape[0], layer.down.shape[1], rows, layer.down.dtype),
        head=choose_matmul("head", head.shape[0], head.shape[1], rows, head.dtype),
    )
    return DecodePlan(model, width, context, attention, narrow=narrow)


def describe_forms(most: int) -> str:
    """Which form computes which width, and the widths that are recorded, for people.

    Args:
        most: Lanes of the widest step.
    """
    parts = ["1 lane: single"]
    if most > 1:
        parts.append(f"2 to {min(most, MOST_NARROW)}: narrow")
    if most > MOST_NARROW:
        parts.append("more: wide")
    return f"{', '.join(parts)}; recorded for {', '.join(map(str, buckets(WIDTHS, most)))} lanes"


def padded_rows(width: int) -> int:
    """Rows of a tile of tensor cores that hold so many lanes."""
    return next(rows for rows in (8, 16, 32, 64) if width <= rows)


def buckets(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Those of some rising sizes that are below `most`, and `most`."""
    return (*(size for size in sizes if size < most), most)
