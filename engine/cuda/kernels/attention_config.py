"""How the decoding kernel of attention is cut, by how many lanes there are and how long their contexts.

Figures: one NVIDIA H200, bfloat16, pages of 16 slots.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPLIT_TOKENS = 1024
"""Tokens one program reads at most, where there are programs enough already."""

_MOST_SPLITS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionConfig:
    """One way to cut it.

    Attributes:
        splits: Programs among which the tiles of a lane's context are shared out.
        block: Tokens a tile.
        heads: Key/value heads a program; must divide their number. All heads of a slot lie together, so more of them
            make longer runs of memory, and the rows of the tensor cores' tile, 16 at least, are put to use.
        num_warps: Of a program.
        num_stages: Tiles in flight; that many are asked for before the kernel in front has ended.
    """

    splits: int = 8
    block: int = 64
    heads: int = 1
    num_warps: int = 4
    num_stages: int = 2


def choose_attention(width: int, context: int, num_heads: int, num_kv_heads: int) -> AttentionConfig:
    """Chooses by shape.

    Args:
        width: Padded number of lanes.
        context: Most tokens a lane's context may have.
        num_heads: Query heads.
        num_kv_heads: Key/value heads.
    """
    splits = _power_between(context // _SPLIT_TOKENS, 1, _MOST_SPLITS)
    if width == 1:
        return AttentionConfig(splits=_power_between(context // 64, 8, _MOST_SPLITS), num_warps=8, num_stages=1)
    if width <= 8:
        return AttentionConfig(splits=_power_between(context // 128, 4, _MOST_SPLITS), block=32, num_stages=3)
    if width < 24 or (width < 48 and num_heads >= 4 * num_kv_heads):
        return AttentionConfig(splits=splits, block=32, num_stages=4)
    heads = _packed(num_heads, num_kv_heads, 2 if width < 96 else 4)
    return AttentionConfig(splits=splits, block=64 // heads, heads=heads, num_stages=3)


def _packed(num_heads: int, num_kv_heads: int, most: int) -> int:
    """Key/value heads whose query heads fit into 16 rows together: a power of two, at most `most`."""
    heads = 1
    while heads < most and num_kv_heads % (2 * heads) == 0 and 2 * heads * num_heads // num_kv_heads <= 16:
        heads *= 2
    return heads


def _power_between(number: int, least: int, most: int) -> int:
    """The next power of two from `number` on, within bounds that are powers of two."""
    return min(most, max(least, 1 << max(0, number - 1).bit_length()))
