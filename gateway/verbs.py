"""Which methods a path takes."""

from __future__ import annotations

from typing import Any

from starlette.routing import Match
from starlette.types import Scope

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
"""Every method that a route may have, in the order of an `Allow` header."""


def allowed_methods(scope: Scope) -> list[str]:
    """The methods of all routes at the path of a request, OPTIONS included; empty if there is no such path.

    Asked of the routes one by one: the router itself tells the methods of the first route alone.
    """
    path: str = scope["path"]
    asked: dict[str, Any] = {**scope, "path": path.rstrip("/") or "/"}
    routes = scope["app"].routes
    methods = [
        method
        for method in METHODS
        if any(route.matches({**asked, "method": method})[0] is Match.FULL for route in routes)
    ]
    return [*methods, "OPTIONS"] if methods else []
