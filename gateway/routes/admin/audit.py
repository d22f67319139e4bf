"""/v1/organization/audit_logs as OpenAI has it; refusals and the ledger of accounts at /v1/admin."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.errors import BadRequest
from gateway.routes.admin.common import listed, tenancy_of
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.reading import readable
from gateway.services import ServicesDep
from gateway.state.tenancy import Record, TenancyStore
from gateway.tenancy.overview import recent_denials

router = APIRouter()

Cursor = Annotated[str | None, Query(max_length=50)]

_BATCH = 200
_MARK = "audit_log-"
_SECONDS = re.compile(r"[0-9]{1,15}")
_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,10}")


@readable(router, "/v1/organization/audit_logs")
async def list_audit_logs(request: Request, services: ServicesDep, after: Cursor = None, limit: Limit = 20) -> Response:
    """What administrators changed, newest first."""
    store = tenancy_of(services).store
    wanted = _Filter(request)
    found: list[dict[str, Any]] = []
    before = _entry_id(after, _MARK)
    while len(found) <= limit:
        lines = await store.audit(before, _BATCH)
        found += [_body(line_id, line) for line_id, line in lines if wanted.takes(line)]
        if len(lines) < _BATCH:
            break
        before = lines[-1][0]
    return json_response(_page(found, limit))


@readable(router, "/v1/admin/denials")
async def list_denials(
    services: ServicesDep, project_id: Annotated[str, Query(max_length=100)] = "", limit: Limit = 20
) -> Response:
    """What was refused lately, newest first; of a tenant in shadow what would have been."""
    found = await recent_denials(tenancy_of(services), tenant_id=project_id, limit=limit)
    return json_response({"object": "list", "data": found})


@readable(router, "/v1/admin/ledger")
async def list_ledger(services: ServicesDep, after: Cursor = None, limit: Limit = 20) -> Response:
    """What happened to KV accounts, newest first: windows that ended, soft limits, engines given up, corrections."""
    found = await _ledger(tenancy_of(services).store, _entry_id(after, ""), limit + 1)
    return json_response(_page(found, limit))


class _Filter:
    def __init__(self, request: Request) -> None:
        self._types = listed(request, "event_types")
        self._projects = listed(request, "project_ids")
        self._targets = listed(request, "resource_ids")
        self._actors = listed(request, "actor_ids")
        bounds = {name: request.query_params.get(f"effective_at[{name}]") for name in ("gt", "gte", "lt", "lte")}
        for name, bound in bounds.items():
            if bound is not None and not _SECONDS.fullmatch(bound):
                raise BadRequest("'effective_at' must be in whole seconds.", f"effective_at[{name}]")
        self._bounds = {name: int(bound) for name, bound in bounds.items() if bound is not None}

    def takes(self, line: dict[str, Any]) -> bool:
        at, bounds = line["at"], self._bounds
        return (
            (not self._types or line["type"] in self._types)
            and (not self._projects or _project(line) in self._projects)
            and (not self._targets or line["target"] in self._targets)
            and (not self._actors or line["actor"] in self._actors)
            and at > bounds.get("gt", -1)
            and at >= bounds.get("gte", 0)
            and at < bounds.get("lt", at + 1)
            and at <= bounds.get("lte", at)
        )


async def _ledger(store: TenancyStore, before: str, limit: int) -> list[dict[str, Any]]:
    return [_entry(one) for one in await store.stream("ledger", before, limit)]


def _entry(entry: Record) -> dict[str, Any]:
    rest = {name: value for name, value in entry.items() if name not in ("id", "kind", "tenant")}
    return {
        "id": entry["id"],
        "object": "ledger.entry",
        "at": int(entry["id"].partition("-")[0]) // 1000,
        "kind": entry["kind"],
        "project_id": entry["tenant"],
        "details": rest,
    }


def _body(line_id: str, line: dict[str, Any]) -> dict[str, Any]:
    project = _project(line)
    return {
        "id": _MARK + line_id,
        "object": "organization.audit_log",
        "type": line["type"],
        "effective_at": line["at"],
        "actor": {"type": "api_key", "api_key": {"id": line["actor"], "type": "service_account"}},
        "project": {"id": project} if project else None,
        "target": line["target"],
        "details": line["details"],
    }


def _project(line: dict[str, Any]) -> str:
    target: str = line["target"]
    return target if target.startswith("proj_") else str(line["details"].get("project_id", ""))


def _entry_id(after: str | None, mark: str) -> str:
    if after is None:
        return ""
    entry_id = after.removeprefix(mark)
    if not _ID.fullmatch(entry_id) or entry_id == "0-0":  # Redis takes this one for nothing that could be before
        raise BadRequest(f"'after' names no item of this list: '{after}'.", "after")
    return entry_id


def _page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    data = found[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }
