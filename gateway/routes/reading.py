"""Routes that are read: GET, and HEAD for whoever wants only the headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


def readable(
    router: APIRouter, path: str, response_class: type[Response] = JSONResponse
) -> Callable[[Handler], Handler]:
    """Decorates the handler of GET and HEAD on `path`; the API's description shows GET alone.

    Args:
        router: Of the module.
        path: Where.
        response_class: What the description says of the answer's kind.
    """

    def register(handler: Handler) -> Handler:
        router.get(path, response_class=response_class)(handler)
        router.head(path, include_in_schema=False)(handler)
        return handler

    return register
