"""Who holds the KV pool, page by page, in one answer: for administrators alone."""

from __future__ import annotations

import time
from typing import Any

from engine.kv.overview import KVHolder, PageRuns
from gateway.console.names import tenant_names
from gateway.services import Services


async def kv_map(services: Services) -> dict[str, Any]:
    """The whole, as it goes over the wire.

    Args:
        services: Of the app.

    Raises:
        EngineStopped: No engine is there.
    """
    info = await services.engine_info()
    drawn = await services.runtime.engine.describe_kv()
    names, now = await tenant_names(services), time.time()
    return {
        "object": "kv_map",
        "at": now,
        "page_bytes": info.page_bytes,
        "page_tokens": info.page_size,
        "device": _runs(drawn.device),
        "host": _runs(drawn.host),
        "holders": [_holder(one, names.get(one.account), now) for one in drawn.holders],
        "num_holders": drawn.num_holders,
    }


def _runs(runs: PageRuns) -> dict[str, Any]:
    return {"pages": runs.num_pages, "cell_pages": runs.cell_pages, "runs": runs.runs}


def _holder(one: KVHolder, name: str | None, now: float) -> dict[str, Any]:
    lease = None if one.value is None else {"value": one.value, "on_pressure": one.on_pressure}
    return {
        "account": one.account,
        "name": name,
        "kind": one.kind,
        "pages": one.num_pages,
        "host_pages": one.num_host_pages,
        "lease": lease,
        "expires_at": None if one.left_ms is None else now + one.left_ms / 1000,
        "idle_s": None if one.idle_ms is None else one.idle_ms / 1000,
    }
