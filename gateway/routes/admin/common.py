"""What routes of administrators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from gateway.errors import BadRequest, NotFound, QuotaStoreUnavailable
from gateway.schemas.base import WireModel, parse_json, validate
from gateway.services import Services
from gateway.tenancy.build import Tenancy
from gateway.tenancy.limits import KeyLimits, reason_of
from gateway.tenancy.middleware import NO_TENANTS
from gateway.tenancy.principal import Principal, principal_of

M = TypeVar("M", bound=WireModel)
L = TypeVar("L", bound=KeyLimits)


def tenancy_of(services: Services) -> Tenancy:
    """What the server knows of tenants.

    Raises:
        NotFound: It has none.
        QuotaStoreUnavailable: It has no Redis.
    """
    if not services.settings.admin_key:
        raise NotFound("This server has no tenants: its operator can set WYE_ADMIN_KEY and start it again.")
    if services.tenants is None:
        raise QuotaStoreUnavailable(NO_TENANTS)
    return services.tenants


def who(request: Request) -> Principal:
    """Who asks; there is always somebody where there are tenants."""
    principal = principal_of(request.scope)
    assert principal is not None
    return principal


async def read_change(request: Request, model: type[M]) -> tuple[M, set[str]]:
    """Reads a body in which null has a meaning: the names of all fields that are there come besides.

    Raises:
        BadRequest: It is no JSON object, or a field is wrong.
    """
    data = parse_json(await request.body())
    return validate(model, data), data.keys() & model.model_fields.keys()


def changed_limits(old: L, body: WireModel, given: set[str]) -> L:
    """Limits with what a body says of them; null takes one away.

    Raises:
        BadRequest: A limit is wrong.
    """
    names = given & old.names().keys()
    fields = {name: getattr(body, name) for name in names}
    if "kv_window" in fields and fields["kv_window"] is None:
        del fields["kv_window"]
        old = old.model_copy(update={"kv_window": "month@UTC"})
    try:
        return type(old).model_validate({**old.model_dump(), **fields})
    except ValidationError as error:
        raise BadRequest(f"Invalid 'kv_window': {reason_of(error)}.", "kv_window") from None


def page_of(data: Sequence[Mapping[str, Any]], *, limit: int, after: str | None) -> dict[str, Any]:
    """One page of a list that is in order.

    Raises:
        BadRequest: `after` names nothing of the list.
    """
    start = 0
    if after is not None:
        places = [place for place, one in enumerate(data) if one["id"] == after]
        if not places:
            raise BadRequest(f"'after' names no item of this list: '{after[:200]}'.", "after")
        start = places[0] + 1
    shown = data[start : start + limit]
    return {
        "object": "list",
        "data": list(shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + limit < len(data),
    }


def listed(request: Request, name: str) -> list[str]:
    """Values of a query parameter that may come several times, in the form of OpenAI's SDKs (`name[]=`) or plainly."""
    return [*request.query_params.getlist(f"{name}[]"), *request.query_params.getlist(name)]
