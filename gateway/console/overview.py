"""What a server does now, in one answer: what the console shows, once a second."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from engine.errors import EngineStopped
from gateway.console.names import tenant_names
from gateway.services import Services

STARTED_AT = time.time()
"""When this process began, in seconds since 1970."""


async def overview(services: Services, owner: str | None) -> dict[str, Any]:
    """The whole, as it goes over the wire.

    Args:
        services: Of the app.
        owner: Whose programs may be seen; None for all.
    """
    programs = await services.programs.live.all()
    names = await tenant_names(services) if owner is None else {}
    return {
        "object": "overview",
        "at": time.time(),
        "server": _server(services),
        "engine": _engine(services),
        "kv": _kv(services, owner, names),
        "programs": [one for one in programs if owner is None or one["tenant"] == owner],
    }


def _server(services: Services) -> dict[str, Any]:
    settings = services.settings
    kept = "none" if services.stored is None else "given by URL" if settings.redis_url else "private"
    return {
        "version": version("wye"),
        "started_at": STARTED_AT,
        "active_requests": services.lifecycle.num_active,
        "is_draining": services.lifecycle.is_draining,
        "redis": kept,
        "workers": settings.workers,
        "has_tenants": services.tenants is not None,
    }


def _engine(services: Services) -> dict[str, Any] | None:
    try:
        info = services.runtime.info
    except EngineStopped:
        return None
    stats = services.runtime.stats
    return {
        "model": services.models.names[0],
        "architecture": info.architecture,
        "device": info.device,
        "dtype": info.dtype,
        "step": info.step,
        "attention_backend": info.attention_backend,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "prefill_tokens": stats.num_prefill_tokens,
        "decode_tokens": stats.num_decode_tokens,
        "preemptions": stats.num_preemptions,
        "step_seconds": stats.step_ms / 1000,
    }


def _kv(services: Services, owner: str | None, names: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        info = services.runtime.info
    except EngineStopped:
        return None
    stats, charges = services.runtime.stats, services.runtime.engine.charges
    return {
        "page_kib": info.page_kib,
        "pages": stats.num_pages or info.num_pages,
        "used_pages": stats.num_used_pages,
        "cached_pages": stats.num_cached_pages,
        "host_pages": stats.num_host_pages,
        "contexts": stats.num_contexts,
        "leases": stats.num_leases,
        "revoked_leases": stats.num_revoked,
        "demoted_contexts": stats.num_demoted,
        "accounts": [
            {
                "account": one.account,
                "name": names.get(one.account),
                "kib": one.level_kib,
                "charged_kib_s": one.total_kib_ms // 1000,
            }
            for one in charges.values()
            if owner is None or one.account == owner
        ],
    }
