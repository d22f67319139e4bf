"""Pages of other origins: who may call, and refusals in the error shape."""

from __future__ import annotations

import msgspec
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from gateway.errors import BadRequest, to_reply


class CrossOrigin(CORSMiddleware):
    """Starlette's CORS middleware, except that a refused preflight says why as every other error does."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answers a preflight."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        reply = to_reply(BadRequest(f"{bytes(response.body).decode()}."))
        headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return Response(msgspec.json.encode(reply.body), reply.status, headers, media_type="application/json")
