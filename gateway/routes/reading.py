"""Routes that are read: GET, and HEAD for whoever wants only the headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Response

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


def readable(router: APIRouter, path: str) -> Callable[[Handler], Handler]:
    """Decorates the handler of GET and HEAD on `path`; the API's description shows GET alone."""

    def register(handler: Handler) -> Handler:
        router.get(path)(handler)
        router.head(path, include_in_schema=False)(handler)
        return handler

    return register
