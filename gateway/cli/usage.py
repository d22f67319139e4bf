"""`wye usage` and `wye audit`: what tenants used, and what administrators did."""

from __future__ import annotations

import json as json_text
import time
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.admin_client import AdminClient, AdminKeyOption, UrlOption, show_table, when
from gateway.cli.console import print_json
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL

_GROUPS = ("project_id", "api_key_id", "model", "program")
_MAX_DAYS = 400


def show_usage(
    days: Annotated[int, typer.Option("--days", min=1, max=_MAX_DAYS, help="Of the past.")] = 7,
    tenant: Annotated[str, typer.Option("--tenant", help="Only this one, by id or name.")] = "",
    by: Annotated[list[str] | None, typer.Option("--by", help="tenant, key, model or program; repeat it.")] = None,
    hours: Annotated[bool, typer.Option("--hours", help="By hour, not by day.")] = False,
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Show requests and tokens by day, and by tenant, key, model or program."""
    client = AdminClient(url, admin_key)
    names = dict(zip(("tenant", "key", "model", "program"), _GROUPS, strict=True))
    for one in by or ():
        if one not in names:
            raise typer.BadParameter(f"{one!r} is none of {', '.join(names)}", param_hint="--by")
    groups = [names[one] for one in by or ("tenant",)]
    query: list[tuple[str, str]] = [
        ("start_time", str(int(time.time()) - days * 86_400)),
        ("bucket_width", "1h" if hours else "1d"),
        *(("group_by[]", one) for one in groups),
    ]
    if tenant:
        query.append(("project_ids[]", client.tenant(tenant)))
    results = [
        {"start": bucket["start_time"], **result} for bucket in _buckets(client, query) for result in bucket["results"]
    ]
    if json:
        print_json(results)
        return
    rows: list[list[object]] = [
        [
            when(one["start"]),
            *(one[name] for name in groups),
            *(one[name] for name in ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")),
        ]
        for one in results
    ]
    show_table(["from", *groups, "requests", "input", "cached", "output"], rows)


def show_audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Most lines.")] = 50,
    tenant: Annotated[str, typer.Option("--tenant", help="Only this one, by id or name.")] = "",
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Show what administrators changed, newest first."""
    client = AdminClient(url, admin_key)
    of = {"project_ids[]": client.tenant(tenant)} if tenant else {}
    found: list[dict[str, Any]] = []
    for line in client.pages("/organization/audit_logs", **of):
        found.append(line)
        if len(found) == limit:
            break
    if json:
        print_json(found)
        return
    rows = [
        (
            when(one["effective_at"]),
            one["type"],
            one["actor"]["api_key"]["id"],
            one["target"],
            json_text.dumps(one["details"], ensure_ascii=False),
        )
        for one in found
    ]
    show_table(["at", "type", "by", "of", "details"], rows)


def _buckets(client: AdminClient, query: list[tuple[str, str]]) -> list[dict[str, Any]]:
    path = f"/organization/usage/completions?{urlencode(query)}"
    found: list[dict[str, Any]] = []
    page = ""
    while True:
        answer = client.send("GET", path + page)
        found += answer["data"]
        if not answer["has_more"]:
            return found
        page = f"&page={answer['next_page']}"
