"""Text of strangers on its way into a prompt: what tools answered must not read as the template's own marks."""

from __future__ import annotations

import re
from functools import lru_cache

from engine.text.tokenizer import Tokenizer


def without_special(text: str, tokenizer: Tokenizer) -> str:
    """The text without anything that the tokenizer would take for a special token."""
    pattern = _special(tokenizer)
    # A space for each: without it what is left of two could be one again.
    return text if pattern is None else pattern.sub(" ", text)


@lru_cache(maxsize=16)
def _special(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    texts = {tokenizer.token_text(token_id) for token_id in tokenizer.special_ids} - {""}
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None
