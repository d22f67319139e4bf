"""Rules by which guesses are judged, written in the language of device programs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GREEDY = """
def verify(logits):
    return argmax(logits)
"""
"""A guess stands if the model expects it most."""

REJECTION = """
def verify(p, q, draft, key):
    stands = uniform(key) * gather(q, draft) < gather(p, draft)
    rest = max(p - q, 0.0)
    return where(stands, draft, categorical(where(sum(rest) > 0.0, rest, p), key))
"""
"""A guess drawn from q stands with probability min(1, p / q), and else a token comes from what p has more than q: what
comes is distributed by p (arXiv 2211.17192). Without a guess, q is 0 and the token comes from p.
"""

VERIFY_RULES: Mapping[str, str] = MappingProxyType({"greedy": GREEDY, "rejection": REJECTION})
"""By the names that `generate(verify=...)` knows."""
