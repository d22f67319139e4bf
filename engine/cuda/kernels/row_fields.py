"""Where a row of `engine.cuda.draw_table.DrawTable` has what: places in its 64-bit words.

The last ones hold float64, read through a pointer of that type.
"""

from __future__ import annotations

import triton.language as tl

WORDS: tl.constexpr = tl.constexpr(24)
"""Length of a row."""

STREAM_KEY: tl.constexpr = tl.constexpr(0)
IS_EDITED: tl.constexpr = tl.constexpr(1)
"""Whether its parameters change its logits."""
IS_TRUNCATED: tl.constexpr = tl.constexpr(2)
"""Whether it draws from a part of the vocabulary."""
COUNTS: tl.constexpr = tl.constexpr(3)
"""Address of its counts, [V] int32; 0 without penalties."""
HISTORY: tl.constexpr = tl.constexpr(4)
"""Address of its history, int64; 0 if its output is not written down."""
HISTORY_BASE: tl.constexpr = tl.constexpr(5)
HISTORY_WIDTH: tl.constexpr = tl.constexpr(6)
ALLOWED: tl.constexpr = tl.constexpr(7)
"""Address of its own bit mask; 0 if every token is allowed."""
ENTRIES: tl.constexpr = tl.constexpr(8)
"""Address of int32: ids with a bias, the biases' bits, banned ids, ids banned before min_tokens, bad words."""
NUM_BIASES: tl.constexpr = tl.constexpr(9)
NUM_BANS: tl.constexpr = tl.constexpr(10)
NUM_EARLY: tl.constexpr = tl.constexpr(11)
MIN_TOKENS: tl.constexpr = tl.constexpr(12)
NUM_BAD_WORDS: tl.constexpr = tl.constexpr(13)
"""Each is the length of its prefix, its last token, its prefix."""
TOP_K: tl.constexpr = tl.constexpr(14)

TEMPERATURE: tl.constexpr = tl.constexpr(16)
"""0 takes the likeliest token."""
TOP_P: tl.constexpr = tl.constexpr(17)
"""Infinite for all."""
MIN_P: tl.constexpr = tl.constexpr(18)
REPETITION: tl.constexpr = tl.constexpr(19)
PRESENCE: tl.constexpr = tl.constexpr(20)
FREQUENCY: tl.constexpr = tl.constexpr(21)
