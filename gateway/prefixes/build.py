"""Puts together what keeps prefixes in one gateway process."""

from __future__ import annotations

from extensions.runtime import Runtime
from gateway.prefixes.service import PrefixService
from gateway.settings import Settings
from gateway.state.prefixes import PrefixStore


def build_prefixes(settings: Settings, runtime: Runtime, url: str) -> PrefixService:
    """What keeps prefixes; connects when first used.

    Args:
        settings: How to serve.
        runtime: The door to the model.
        url: Of a Redis; empty keeps none.
    """
    store = None
    if url:
        store = PrefixStore(url, max_prefixes=settings.max_prefixes, max_bytes=settings.max_prefixes_bytes)
    return PrefixService(runtime, store, ttl_s=settings.prefix_ttl_s, max_ttl_s=settings.max_prefix_ttl_s)
