"""Stored responses as they are now: read, followed event by event, and given up when whoever made them is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from gateway.errors import NotFound, NotReady
from gateway.services import Services
from gateway.state.store import ResponseStore
from gateway.translate.chunks import encode_json
from gateway.translate.responses_events import frame
from gateway.translate.responses_object import Body, is_over

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_LOST = {"code": "server_error", "message": "The server process that made this response ended before it was done."}
_GOES_ON = "The server is shutting down. The response goes on elsewhere, and its events can be read."
_PATIENCE = 2
"""Times that nothing new is heard of a response that is over before its last event is made anew."""


class _Event(msgspec.Struct):
    type: str
    sequence_number: int


_read_event = msgspec.json.Decoder(_Event).decode


def not_found(response_id: str) -> NotFound:
    """There is no such response, for this caller."""
    return NotFound(f"Response with id '{response_id[:200]}' not found.", "response_id")


async def read_response(services: Services, response_id: str, owner: str, *fields: str) -> dict[str, Any]:
    """Fields of a stored response, `body` among them; one whose maker is gone has failed.

    Raises:
        NotFound: The caller has no such response.
        StoreUnavailable: There is no store, or it does not answer.
    """
    store = services.store
    found = await store.read(response_id, owner, "response", "body", *fields)
    if found is not None and not is_over(found["body"]) and not await store.is_alive(response_id):
        # Its maker may have ended it between the two questions.
        await _give_up(store, response_id, found["body"])
        found = await store.read(response_id, owner, "response", "body", *fields)
    if found is None:
        raise not_found(response_id)
    return found


async def _give_up(store: ResponseStore, response_id: str, body: Body) -> None:
    lost = {**body, "status": "failed", "error": _LOST}
    await store.put(response_id, {"status": "failed", "body": lost, "context": []}, mode="settle")


async def follow(services: Services, response_id: str, owner: str, after: int) -> AsyncGenerator[bytes, None]:
    """Framed events of a response with numbers above `after`, up to its last one; waits for those to come.

    In a worker that is draining it ends with an error if the response is made by another one. An error has the number
    of the event before it: whoever goes on after that misses nothing.
    """
    last, num_quiet = -1, 0
    try:
        async for events in services.store.events(response_id):
            for data in events:
                event = _read_event(data)
                # What its maker was not sure to have stored may be there twice.
                if event.sequence_number <= last:
                    continue
                last = event.sequence_number
                if last > after:
                    yield frame(data)
                if event.type in _TERMINAL:
                    return
            num_quiet = 0 if events else num_quiet + 1
            # Asked first: a response that ends here afterwards is seen to be over.
            has_left = services.runs.has_left(response_id)
            if num_quiet or has_left:
                body = (await read_response(services, response_id, owner))["body"]
                if has_left and not is_over(body):
                    raise NotReady(_GOES_ON)
                if is_over(body) and num_quiet >= _PATIENCE:
                    yield frame(_ending(body, last + 1))
                    return
    except Exception as error:
        told = services.to_reply(error).body["error"]
        fields = {"code": told["code"], "message": told["message"], "param": told["param"]}
        yield frame(encode_json({"type": "error", **fields, "sequence_number": max(last, after)}))


def _ending(body: Body, number: int) -> bytes:
    kinds = {"completed": "response.completed", "failed": "response.failed"}
    kind = kinds.get(body["status"], "response.incomplete")
    return encode_json({"type": kind, "response": body, "sequence_number": number})
