"""Lists in pages, as SDKs walk them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query

from gateway.errors import BadRequest
from gateway.schemas.items import Item

Limit = Annotated[int, Query(ge=1, le=100)]
Order = Literal["asc", "desc"]


def page(items: Sequence[Item], *, limit: int, order: Order, after: str | None) -> dict[str, Any]:
    """One page of a list of items.

    Args:
        items: All, oldest first.
        limit: Most items of the page.
        order: Whether the newest or the oldest come first.
        after: Id of the last item of the page before.

    Raises:
        BadRequest: There is no item of that id.
    """
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise BadRequest(f"'after' names no item of this list: '{after[:200]}'.", "after")
        start = places[0] + 1
    data = ordered[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(ordered),
    }
