"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter, Response

from engine.errors import EngineStopped
from engine.request import EngineInfo
from gateway.routes.answering import json_response
from gateway.routes.reading import readable
from gateway.services import Services, ServicesDep

router = APIRouter()


@readable(router, "/v1/models")
async def list_models(services: ServicesDep) -> Response:
    """Lists the names the model is served under."""
    return json_response(services.models.list_body(_info(services)))


@readable(router, "/v1/models/{model_id:path}")
async def get_model(model_id: str, services: ServicesDep) -> Response:
    """Describes one of them; names may hold slashes."""
    return json_response(services.models.body(model_id, _info(services)))


def _info(services: Services) -> EngineInfo | None:
    try:
        return services.runtime.info
    except EngineStopped:
        return None
