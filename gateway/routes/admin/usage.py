"""/v1/organization/usage/completions and /v1/organization/costs: usage in buckets, as OpenAI has it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Query as Parameter

from gateway.errors import BadRequest
from gateway.routes.admin.common import listed, tenancy_of
from gateway.routes.answering import json_response
from gateway.routes.reading import readable
from gateway.services import Services, ServicesDep
from gateway.tenancy.usage import DAY_S, HOUR_S, Bucket, Group, Query, usage

router = APIRouter()

Seconds = Annotated[int, Parameter(ge=0, le=2**40)]

_WIDTHS = {"1h": (HOUR_S, 24, 168), "1d": (DAY_S, 7, 31)}
"""Seconds of a bucket, how many there are if nothing is said, and at most."""

_GROUPS = ("project_id", "api_key_id", "model", "program")
_KIB_SECONDS_PER_GIB_HOUR = 1024 * 1024 * 3600


@readable(router, "/v1/organization/usage/completions")
async def get_completions_usage(
    request: Request,
    services: ServicesDep,
    start_time: Seconds,
    end_time: Seconds | None = None,
    bucket_width: str = "1d",
    limit: Annotated[int | None, Parameter(ge=1, le=168)] = None,
    page: Annotated[str | None, Parameter(max_length=20)] = None,
) -> Response:
    """Requests and tokens by hour or day, and by tenant, key, model and program."""
    span = _span(start_time, end_time, bucket_width, limit, page)
    return await _answer(request, services, span, _tokens)


@readable(router, "/v1/organization/costs")
async def get_costs(
    request: Request,
    services: ServicesDep,
    start_time: Seconds,
    end_time: Seconds | None = None,
    bucket_width: str = "1d",
    limit: Annotated[int | None, Parameter(ge=1, le=168)] = None,
    page: Annotated[str | None, Parameter(max_length=20)] = None,
) -> Response:
    """Memory of the model times time, by hour or day, and by tenant; no money, as nothing here knows prices."""
    span = _span(start_time, end_time, bucket_width, limit, page)
    return await _answer(request, services, span, _memory)


def _span(
    start_s: int, end_s: int | None, width: str, limit: int | None, page: str | None
) -> tuple[int, int, int, bool]:
    """Begin, end, width, and whether something comes after it."""
    if width not in _WIDTHS:
        raise BadRequest("'bucket_width' must be '1h' or '1d'.", "bucket_width")
    width_s, usual, most = _WIDTHS[width]
    if limit is not None and limit > most:
        raise BadRequest(f"'limit' must be at most {most} for '{width}'.", "limit")
    if page is not None:
        if not page.isdigit():
            raise BadRequest("'page' is not one of this list's.", "page")
        start_s = int(page)
    last_s = int(time.time()) + 1 if end_s is None else end_s
    if last_s <= start_s and end_s is not None and page is None:
        raise BadRequest("'end_time' must be later than 'start_time'.", "end_time")
    stop_s = start_s - start_s % width_s + (limit or usual) * width_s
    return start_s, max(start_s, min(stop_s, last_s)), width_s, stop_s < last_s


async def _answer(
    request: Request,
    services: Services,
    span: tuple[int, int, int, bool],
    tell: Callable[[Group, Counter[str]], dict[str, Any]],
) -> Response:
    tenancy = tenancy_of(services)
    start_s, end_s, width_s, has_more = span
    group_by = listed(request, "group_by")
    for name in group_by:
        if name not in (*_GROUPS, "user_id", "batch", "service_tier", "api_source", "line_item"):
            raise BadRequest(f"There is no group '{name[:50]}'.", "group_by")
    wanted = listed(request, "project_ids")
    tenants = [one.id for one in await tenancy.directory.tenants() if not wanted or one.id in wanted]
    query = Query(
        start_s=start_s,
        end_s=end_s,
        width_s=width_s,
        group_by=group_by,
        keys=listed(request, "api_key_ids"),
        models=listed(request, "models"),
    )
    buckets = await usage(tenancy.store, tenants, query) if end_s > start_s else []
    return json_response(
        {
            "object": "page",
            "data": [_bucket(one, tell) for one in buckets],
            "has_more": has_more,
            "next_page": str(end_s) if has_more else None,
        }
    )


def _bucket(bucket: Bucket, tell: Callable[[Group, Counter[str]], dict[str, Any]]) -> dict[str, Any]:
    results = [found for group, counts in sorted(bucket.groups.items()) if (found := tell(group, counts))]
    return {"object": "bucket", "start_time": bucket.start_s, "end_time": bucket.end_s, "results": results}


def _tokens(group: Group, counts: Counter[str]) -> dict[str, Any]:
    if not (counts["requests"] or counts["input"] or counts["output"]):
        return {}
    tenant, key, model, program = (part or None for part in group)
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": counts["input"],
        "input_cached_tokens": counts["cached"],
        "output_tokens": counts["output"],
        "num_model_requests": counts["requests"],
        "project_id": tenant,
        "api_key_id": key,
        "model": model,
        "program": program,
        "user_id": None,
        "batch": None,
    }


def _memory(group: Group, counts: Counter[str]) -> dict[str, Any]:
    if not counts["kv_ms"]:
        return {}
    kib_s = counts["kv_ms"] / 1000
    return {
        "object": "organization.costs.result",
        "amount": None,
        "line_item": "kv",
        "project_id": group[0] or None,
        "quantity": kib_s / _KIB_SECONDS_PER_GIB_HOUR,
        "quantity_unit": "gibibyte_hours",
        "kib_seconds": kib_s,
    }
