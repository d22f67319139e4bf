"""The composition root: settings, an engine's door and a model's text side become an ASGI application."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import Receive, Scope, Send

from engine.client import EngineClient
from engine.request import Pooling
from engine.text.judging import Judgement, load_judgement, named_judgement
from engine.text.model import TextModel
from engine.text.pooling import load_pooling
from extensions.parsing.formats import FORMATS
from extensions.runtime import Runtime
from gateway.auth import OPEN_PATHS, ApiKeys, Authenticate
from gateway.batches.build import build_runner
from gateway.console.files import console_paths
from gateway.cors import CrossOrigin
from gateway.errors import BadRequest
from gateway.lifecycle import Admission, Lifecycle
from gateway.middleware import ErrorBoundary, PlainOptions, RequestBody, RequestLog, TrailingSlash
from gateway.models import ServedModels
from gateway.openapi import DescribedApi
from gateway.prefixes.build import build_prefixes
from gateway.prefixes.retaining import Retainer
from gateway.programs.build import build_programs, program_limits, sandbox_options
from gateway.routes import (
    batches,
    chat,
    completions,
    console,
    conversations,
    embeddings,
    extensions,
    files,
    health,
    models,
    prefixes,
    quota,
    responses,
    runs,
    tokenize,
    tools,
)
from gateway.routes.admin import ADMIN_ROUTES
from gateway.routes.answering import json_response
from gateway.routes.uploads import FORM_ROOM_BYTES
from gateway.runs.build import build_runs
from gateway.services import Services
from gateway.settings import Settings
from gateway.state.runs import BackgroundRuns
from gateway.state.store import Bounds, ResponseStore
from gateway.telemetry import Metrics
from gateway.tenancy.build import build_tenancy
from gateway.tenancy.middleware import TenantDoor
from gateway.tools.service import build_tools
from gateway.tracing import TraceRequests

EXPOSED_HEADERS = (
    "x-request-id",
    "openai-processing-ms",
    "openai-version",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-run-id",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
    "x-cost-kv-kib-seconds",
    *(f"x-kv-quota-{what}" for what in ("limit", "used", "remaining", "reset")),
)
"""Response headers that scripts of other origins may read."""

ROUTES = (
    chat,
    completions,
    embeddings,
    responses,
    conversations,
    extensions,
    runs,
    tools,
    prefixes,
    files,
    batches,
    models,
    tokenize,
    health,
    console,
    quota,
    *ADMIN_ROUTES,
)
"""Modules with routes, in the order of the API's description."""


def create_app(
    settings: Settings,
    *,
    engine: EngineClient,
    text: TextModel,
    worker: int = 0,
    metrics_dir: Path | None = None,
    store_url: str = "",
    files_dir: Path | None = None,
) -> FastAPI:
    """Puts a gateway together. The caller owns the engine client, and closes it and `app.state.services`.

    Args:
        settings: How to serve.
        engine: The engine's door.
        text: Tokenizer and chat template of the engine's model.
        worker: Index of this process among the gateway's workers.
        metrics_dir: Where workers share their request metrics, if there are several.
        store_url: A Redis of this server's own; `settings.redis_url` wins; without either nothing is stored.
        files_dir: Where files are kept; `settings.files_dir` wins; without either, or without a Redis, none are.

    Raises:
        ModelLoadError: The model's files name a pooling, or a way to judge texts, that is not known here, and the
            settings name none; or the settings name words that are not one token each.
    """
    metrics = Metrics(engine, worker, metrics_dir)
    lifecycle = Lifecycle(metrics.set_active)
    url = settings.redis_url or store_url
    stored = _store(settings, url)
    runtime = Runtime(
        engine,
        text,
        _pooling(settings, text),
        limits=program_limits(settings),
        sandbox=sandbox_options(settings),
        tool_format=None if settings.tool_format == "auto" else FORMATS[settings.tool_format],
        judgement=_judgement(settings, text),
    )
    names = settings.model_names or (text.path.stem if text.path.is_file() else text.path.name,)
    served = ServedModels(names, list(settings.adapter_paths))

    tool_service = build_tools(settings, runtime, url, served.names[0], metrics)

    async def itself(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)

    prefix_service = build_prefixes(settings, runtime, url)
    programs = build_programs(settings, runtime, url, tool_service, prefix_service)
    tenants = build_tenancy(settings, url, engine)
    services = Services(
        settings=settings,
        runtime=runtime,
        models=served,
        metrics=metrics,
        lifecycle=lifecycle,
        stored=stored,
        runs=BackgroundRuns(stored, lifecycle),
        programs=programs,
        tools=tool_service,
        prefixes=prefix_service,
        retainer=Retainer(runtime, max_ttl_s=settings.max_retention_s, max_kept=settings.max_retained),
        batches=build_runner(
            settings, itself, url=url, files_dir=files_dir, lifecycle=lifecycle, runtime=runtime, models=served
        ),
        detached=build_runs(settings, url, programs, runtime, lifecycle, tenants),
        tenants=tenants,
    )
    app = DescribedApi(
        title="Wye",
        version=version("wye"),
        redirect_slashes=False,
        # Its own would also trace probes and inner steps; `gateway.tracing` has ours.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        middleware=_middleware(services),
        exception_handlers={HTTPException: _on_http_error, RequestValidationError: _on_validation_error},
    )
    app.needs_key = bool(settings.api_keys or settings.admin_key)
    app.open_paths = _open_paths(settings)
    app.state.services = services
    for module in ROUTES:
        app.include_router(module.router)
    return app


def _pooling(settings: Settings, text: TextModel) -> Pooling:
    if settings.pooling != "auto":
        return Pooling(settings.pooling)
    return load_pooling(text.path) or Pooling.MEAN


def _judgement(settings: Settings, text: TextModel) -> Judgement | None:
    if settings.reranker == "auto":
        return load_judgement(text.path, text.tokenizer)
    no, _, yes = settings.reranker.partition(",")
    return named_judgement(no, yes, text.tokenizer) if yes else None


def _store(settings: Settings, url: str) -> ResponseStore | None:
    bounds = Bounds(count=settings.max_stored, bytes=settings.max_stored_bytes, ttl_s=settings.stored_ttl_s)
    return ResponseStore(url, bounds) if url else None


def _open_paths(settings: Settings) -> frozenset[str]:
    """Paths that need no key."""
    return OPEN_PATHS | console_paths() | ({"/metrics"} if settings.open_metrics else set())


def _middleware(services: Services) -> list[Middleware]:
    """Outermost first. Errors are answered inside CORS, so that scripts in browsers can read them."""
    settings = services.settings
    open_paths = _open_paths(settings)
    tracing = [Middleware(TraceRequests)] if settings.trace_endpoint else []
    return [
        *tracing,
        Middleware(RequestLog, access_log=settings.access_log, observe=services.metrics.observe_http),
        Middleware(
            CrossOrigin,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        ),
        Middleware(ErrorBoundary, to_reply=services.to_reply),
        Middleware(PlainOptions),
        Middleware(TrailingSlash),
        *_door(services, open_paths),
        Middleware(Admission, lifecycle=services.lifecycle),
        Middleware(
            RequestBody,
            limit_bytes=settings.max_body_bytes,
            forms={"/v1/files": settings.max_file_bytes + FORM_ROOM_BYTES},
        ),
    ]


def _door(services: Services, open_paths: frozenset[str]) -> list[Middleware]:
    settings = services.settings
    keys = ApiKeys(settings.api_keys)
    if not settings.admin_key:
        return [Middleware(Authenticate, keys=keys, open_paths=open_paths)]
    gate = None if services.tenants is None else services.tenants.gate
    door = Middleware(TenantDoor, keys=keys, admin_key=settings.admin_key, gate=gate, open_paths=open_paths)
    # Inside the door too: what fails after it was admitted has been counted, and its answer tells what is left.
    return [door, Middleware(ErrorBoundary, to_reply=services.to_reply)]


_PATH_ERRORS = {
    "Not Found": "Invalid URL ({method} {path}): nothing is served there.",
    "Method Not Allowed": "Invalid method for URL ({method} {path}).",
}
"""What the router says, and what clients are told of it."""

MAX_SHOWN_PATH = 300


async def _on_http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the error shape, saying of which path."""
    if isinstance(error, HTTPException) and error.detail in _PATH_ERRORS:
        path = request.url.path[:MAX_SHOWN_PATH]
        detail = _PATH_ERRORS[error.detail].format(method=request.method, path=ascii(path)[1:-1])
        error = HTTPException(error.status_code, detail, dict(error.headers or {}))
    return _reply(request, error)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """Path and query parameters that FastAPI refuses: 400, not 422."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    if first["type"] == "missing":
        return _reply(request, BadRequest(f"Missing required parameter: '{name}'.", name))
    return _reply(request, BadRequest(f"Invalid '{name}': {first['msg']}.", name))


def _reply(request: Request, error: Exception) -> Response:
    services: Services = request.app.state.services
    reply = services.to_reply(error)
    body: dict[str, Any] = reply.body
    response = json_response(body, reply.status)
    response.headers.update(reply.headers)
    return response
