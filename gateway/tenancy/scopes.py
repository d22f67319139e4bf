"""Which path needs which scope of a key, and which paths are work that limits count."""

from __future__ import annotations

import re

SCOPES = ("models", "inference", "programs", "files", "tools", "prefixes", "quota")
"""What keys may be narrowed to; `*` is all of them, those to come included."""

_BY_PREFIX = (
    ("/v1/models", "models"),
    ("/v1/files", "files"),
    ("/v1/batches", "files"),
    ("/v1/extensions", "programs"),
    ("/v1/runs", "programs"),
    ("/v1/tools", "tools"),
    ("/v1/prefixes", "prefixes"),
    ("/v1/quota", "quota"),
)
"""What is not listed needs `inference`: a path that somebody forgets here is not open to narrower keys."""

_NO_WORK = (
    "/v1/files",
    "/v1/batches",
    "/v1/extensions",
    "/v1/tools",
    "/v1/conversations",
    "/v1/organization",
    "/v1/admin",
)
"""POST to these costs the engine nothing by itself. All other POST is work, also on paths to come."""

_TOOL_TEST = re.compile(r"/v1/tools/[^/]+/test")
"""But this calls the tool, which may be a program that has the model generate."""

_OPEN_TO_ANY_KEY = frozenset({"/version", "/metrics", "/docs", "/openapi.json"})


def needed_scope(method: str, path: str) -> str:
    """The scope that a request needs; empty if any key will do."""
    if method == "OPTIONS" or path in _OPEN_TO_ANY_KEY or is_administration(path):
        return ""
    return next((scope for prefix, scope in _BY_PREFIX if _is_below(path, prefix)), "inference")


def is_work(method: str, path: str) -> bool:
    """True for what rates, concurrency and quotas count."""
    if method != "POST" or path.endswith(("/cancel", "/input")):
        return False
    if _TOOL_TEST.fullmatch(path):
        return True
    return not any(_is_below(path, prefix) for prefix in _NO_WORK)


def is_administration(path: str) -> bool:
    """True for what only administrators may do."""
    return _is_below(path, "/v1/organization") or _is_below(path, "/v1/admin")


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
