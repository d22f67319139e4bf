"""The API's description (`/openapi.json`, `/docs`): what FastAPI cannot see, as routes read their bodies themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from gateway.answered import describe_answers
from gateway.schemas.admin import (
    AdjustRequest,
    AdminKeyRequest,
    ConfigurationFile,
    KeyRequest,
    KeyUpdate,
    ProjectRequest,
    RateLimitUpdate,
    RotateRequest,
    ServiceAccountRequest,
    TenantUpdate,
)
from gateway.schemas.base import WireModel
from gateway.schemas.batches import MAX_TTL_S, MIN_TTL_S, PURPOSES, BatchRequest
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from gateway.schemas.extensions import SourceRequest
from gateway.schemas.prefixes import PrefixRequest, PrefixUpdate
from gateway.schemas.responses import (
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
    InputTokensRequest,
    ResponseRequest,
)
from gateway.schemas.runs import RunInputRequest, RunRequest
from gateway.schemas.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from gateway.schemas.tools_registry import ToolDescription, ToolTestRequest

BODIES: tuple[type[WireModel], ...] = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ScoreRequest,
    RerankRequest,
    ResponseRequest,
    InputTokensRequest,
    ConversationRequest,
    ConversationUpdate,
    ConversationItemsRequest,
    BatchRequest,
    SourceRequest,
    RunRequest,
    RunInputRequest,
    ToolDescription,
    ToolTestRequest,
    PrefixRequest,
    PrefixUpdate,
    TokenizeTextRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
    ProjectRequest,
    ServiceAccountRequest,
    KeyRequest,
    KeyUpdate,
    RotateRequest,
    AdminKeyRequest,
    RateLimitUpdate,
    TenantUpdate,
    AdjustRequest,
    ConfigurationFile,
)
"""Every request body there is."""

_COMPONENTS = "#/components/schemas/"
_NULLABLE_STRING = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR_SCHEMA: dict[str, Any] = {
    "title": "Error",
    "description": "Every answer whose status is not 2xx.",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {**_NULLABLE_STRING, "description": "Path of the field at fault."},
                "code": _NULLABLE_STRING,
            },
        }
    },
}
_ERROR_RESPONSE = {
    "description": "Refused or failed: 4xx or 5xx.",
    "content": {"application/json": {"schema": {"$ref": f"{_COMPONENTS}Error"}}},
}
_EVENTS = {
    "schema": {"type": "string"},
    "description": "With `stream`: server-sent events, each a chunk or an error as JSON; the last one is [DONE].",
}


UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": MIN_TTL_S, "maximum": MAX_TTL_S},
                    },
                }
            }
        },
    }
}
"""What to add to the description of the route that takes a file."""


def takes(*bodies: type[WireModel], streams: bool = False) -> dict[str, Any]:
    """What to add to the description of a route that reads one of `bodies`.

    Args:
        bodies: Alternatives; all must be in `BODIES`.
        streams: The answer can be a stream of events.
    """
    refs = [{"$ref": _COMPONENTS + body.__name__} for body in bodies]
    schema: dict[str, Any] = refs[0] if len(refs) == 1 else {"anyOf": refs}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    if streams:
        extra["responses"] = {"200": {"content": {"text/event-stream": _EVENTS}}}
    return extra


class DescribedApi(FastAPI):
    """A FastAPI application that describes bodies and errors as they are.

    Attributes:
        needs_key: Requests need an API key.
        open_paths: But for those at these paths.
    """

    needs_key = False
    open_paths: frozenset[str] = frozenset()

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            self._describe(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema

    def _describe(self, description: dict[str, Any]) -> None:
        for path in description["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = _ERROR_RESPONSE
        ref_template = _COMPONENTS + "{model}"
        _, schemas = models_json_schema([(body, "validation") for body in BODIES], ref_template=ref_template)
        answers = describe_answers(description, ref_template)
        assert not answers.keys() & schemas["$defs"].keys()
        components = description.setdefault("components", {})
        components["schemas"] = {**schemas["$defs"], **answers, "Error": _ERROR_SCHEMA}
        if self.needs_key:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            description["security"] = [{"key": []}]
            for path in self.open_paths & description["paths"].keys():
                for operation in description["paths"][path].values():
                    operation["security"] = []
