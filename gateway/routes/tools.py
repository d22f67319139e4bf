"""/v1/tools: tools and MCP servers that tenants register, and those that the operator has."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from extensions.errors import ProgramInvalid
from extensions.tools.catalog import ToolCaller
from extensions.tools.errors import EgressDenied, ToolNotFound
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from gateway.openapi import takes
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.owning import is_operator, owner_of, payer_of
from gateway.routes.reading import readable
from gateway.schemas.tools_registry import ToolDescription, ToolTestRequest
from gateway.services import Services, ServicesDep, read_body
from gateway.sse import unless_disconnected
from gateway.tools.resolving import name_of

router = APIRouter()


@router.post("/v1/tools", openapi_extra=takes(ToolDescription))
async def register_tool(request: Request, services: ServicesDep) -> Response:
    """Registers a tool or an MCP server, in place of an own one of the same name. Secrets are never shown again."""
    body = await read_body(request, ToolDescription)
    if body.script is not None:
        payer_of(request, services, None).require("programs")
    description = body.model_dump(exclude_none=True, exclude_unset=True)
    source = (body.script or {}).get("source")
    if isinstance(source, str) and source.strip():
        await _check_script(services, source)
    entry = await services.tools.registry.register(description, owner_of(request, services))
    return json_response(entry.body())


async def _check_script(services: Services, source: str) -> None:
    try:
        await services.programs.finder.check(source)
    except ProgramInvalid as error:
        error.param = "script.source"
        raise


@readable(router, "/v1/tools")
async def list_tools(
    request: Request,
    services: ServicesDep,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
) -> Response:
    """Lists tools and servers by name: one's own, and the operator's."""
    found = await services.tools.registry.all(owner_of(request, services))
    entries = [one for one in found if one.name > (after or "")]
    data = [one.body() for one in entries[:limit]]
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(entries) > limit,
        }
    )


@readable(router, "/v1/tools/{tool_id}")
async def get_tool(tool_id: str, request: Request, services: ServicesDep) -> Response:
    """Describes a tool or a server, without its secrets."""
    entry = await services.tools.registry.look_up(tool_id, owner_of(request, services), "tool_id")
    return json_response(entry.body())


@router.delete("/v1/tools/{tool_id}")
async def delete_tool(tool_id: str, request: Request, services: ServicesDep) -> Response:
    """Forgets a tool or a server that one has registered. Calls that are being made go on."""
    await services.tools.registry.remove(tool_id, owner_of(request, services))
    return json_response({"id": tool_id, "object": "tool.deleted", "deleted": True})


@router.post("/v1/tools/{tool_id}/test", openapi_extra=takes(ToolTestRequest))
async def test_tool(tool_id: str, request: Request, services: ServicesDep) -> Response:
    """Calls a tool for once, really; of a server without `tool`, lists its tools."""
    body = await read_body(request, ToolTestRequest)
    owner = owner_of(request, services)
    entry = await services.tools.registry.look_up(tool_id, owner, "tool_id")
    payer = payer_of(request, services, None)
    run_id = f"test_{uuid.uuid4().hex}"
    caller = ToolCaller(account=owner, salt=payer.salt, run_id=run_id, note=payer.note)
    work = _test(services, entry.target, body, caller)
    try:
        tested = await unless_disconnected(request.receive, work)
    except EgressDenied as error:
        if is_operator(request, services):
            error.message = error.detail
        raise
    return json_response({"id": tool_id, "object": "tool.test"} | tested)


async def _test(
    services: Services, target: ToolSpec | McpServer, body: ToolTestRequest, caller: ToolCaller
) -> dict[str, Any]:
    started_s = time.perf_counter()
    box = services.tools.box
    if isinstance(target, McpServer):
        specs = await box.list_tools(target, caller=caller)
        if body.tool is None:
            took_ms = (time.perf_counter() - started_s) * 1000
            return _tested(tools=[_listed(spec) for spec in specs], ms=took_ms)
        found = next((spec for spec in specs if name_of(spec) == body.tool), None)
        if found is None:
            raise ToolNotFound(f"The server '{target.label}' has no tool '{body.tool}'.", body.tool)
        target = found
    result = await box.call(target, body.arguments, operation_id=uuid.uuid4().hex, caller=caller)
    return _tested(output=result.text, is_error=result.is_error, is_cut=result.is_cut, ms=result.ms)


def _listed(spec: ToolSpec) -> dict[str, Any]:
    return {
        "name": name_of(spec),
        "description": spec.description,
        "parameters": dict(spec.parameters),
        "effect": spec.effect,
    }


def _tested(**found: Any) -> dict[str, Any]:
    return {"tools": None, "output": None, "is_error": False, "is_cut": False, **found}
