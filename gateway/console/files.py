"""The page's files, read once. They are served as they are: there is no build step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PATH = "/console"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file.

    Attributes:
        content: Its bytes.
        media_type: What it is.
        etag: Changes with the content.
    """

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """All files by their path on the server."""
    found = {}
    for file in files("gateway.console").joinpath("page").iterdir():
        _, _, kind = file.name.rpartition(".")
        if kind in _TYPES:
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            path = PATH if file.name == "index.html" else f"{PATH}/{file.name}"
            found[path] = PageFile(content, _TYPES[kind], etag)
    return found


def console_paths() -> frozenset[str]:
    """Paths that answer without a key: the page asks for one."""
    return frozenset(page_files())
