"""GET /, /health, /ping, /ready, /version and /metrics."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from gateway.console.files import PATH as CONSOLE_PATH
from gateway.errors import NotReady
from gateway.routes.answering import json_response
from gateway.routes.reading import readable
from gateway.services import ServicesDep
from gateway.telemetry import CONTENT_TYPE

router = APIRouter()


@readable(router, "/")
async def root() -> Response:
    """Where everything is."""
    # The same for everybody and at any time: it says nothing of the server's state, model or version.
    return json_response({"server": "wye", "api": "/v1", "console": CONSOLE_PATH, "docs": "/docs"})


@readable(router, "/health")
@readable(router, "/ping")
async def health(services: ServicesDep) -> Response:
    """200 while an engine is there."""
    if not services.runtime.is_ready:
        raise NotReady("No engine is running.")
    return json_response({"status": "ok"})


@readable(router, "/ready")
async def ready(services: ServicesDep) -> Response:
    """200 if a request sent now would be taken: an engine is there and nobody has asked to shut down."""
    if not services.is_ready:
        reason = "The server is shutting down." if services.lifecycle.is_draining else "No engine is running."
        raise NotReady(reason)
    return json_response({"status": "ready"})


@readable(router, "/version")
async def show_version() -> Response:
    """The version of this server."""
    return json_response({"version": version("wye")})


@readable(router, "/metrics", PlainTextResponse)
async def metrics(services: ServicesDep) -> Response:
    """All metrics in Prometheus' text format."""
    return Response(services.metrics.expose(), media_type=CONTENT_TYPE)
