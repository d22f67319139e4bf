"""What contexts of one family have in common, so that it is computed once.

Forks share the pages that are computed when they are made. What is not computed by then is computed by the first that
needs it: the others wait for that, then take a copy-on-write share of its pages.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import NamedTuple

from engine.contexts.held import HeldContext
from engine.kv.block_table import BlockTable
from engine.sequence import Sequence

FEW_TOKENS = 16
"""What rows of passes that look side by side begin with alike is computed by each where it is less than this: to wait
for another would let one after the other wait, for no such look leaves pages behind."""


class Source(NamedTuple):
    """Where leading tokens of a context are computed already."""

    table: BlockTable
    num_tokens: int


def num_common(one: ListOf[int], other: ListOf[int]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def find_leader(context: HeldContext, num_reusable: int, least: int = 1) -> tuple[Sequence, int] | None:
    """Who is computing more of this context's history than the context has, and how much of it; None if nobody is.

    Args:
        context: One that a sequence wants to compute on.
        num_reusable: Tokens that the sequence could take over.
        least: Tokens that would have to be saved by waiting.
    """
    num_reusable = min(num_reusable, context.num_plain)
    for kin in context.family:
        other = kin.sequence
        if kin is context or other is None or not other.is_running:
            continue
        if min(other.num_prompt, num_reusable) <= max(context.num_computed, other.num_computed):
            continue
        common = min(num_common(context.token_ids, kin.token_ids[: other.num_prompt]), num_reusable, kin.num_plain)
        if common >= context.num_computed + least and common >= other.num_computed + least:
            return other, common
    return None


def find_source(context: HeldContext, num_reusable: int) -> Source | None:
    """Whose pages hold the most of this context's history; None if its own do.

    Args:
        context: One that a sequence wants to compute on; nobody runs on it.
        num_reusable: Tokens that the sequence could take over.
    """
    best, source = min(context.num_computed, num_reusable), None
    num_reusable = min(num_reusable, context.num_plain)
    if best >= num_reusable:
        return None
    for kin in context.family:
        table, num_computed = _holding(kin)
        num_computed = min(num_computed, kin.num_plain)
        if kin is context or table is None or num_computed <= best:
            continue
        common = min(num_common(context.token_ids, kin.token_ids[:num_computed]), num_reusable)
        if common > best:
            best, source = common, Source(table, common)
    return source


def _holding(context: HeldContext) -> tuple[BlockTable | None, int]:
    sequence = context.sequence
    if sequence is not None and sequence.is_running:
        return sequence.table, sequence.num_certain
    return context.table, context.num_computed
