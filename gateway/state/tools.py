"""Registered tools, in any Redis, under names of their owners; and calls that people approved, each made once.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    t:OWNER        hash    name -> JSON of what was registered, secrets included
    ts:OWNER       string  bytes of all of them
    ta:OWNER:ID    string  an approved call: empty while it is made, then JSON of its outcome
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from redis.exceptions import RedisError

from gateway.state.link import connect, unavailable
from gateway.state.store import PREFIX

CALL_TTL_S = 24 * 3600
"""How long it is remembered that an approved call has been made."""

_REGISTER = """
-- wye tools 1
-- KEYS  t:OWNER, ts:OWNER
-- ARGV  name, record, most tools, most bytes
-- Returns 1 if it is there now, 0 if it took the place of another, -1 or -2 if there are too many tools or bytes.
local old = redis.call('HGET', KEYS[1], ARGV[1])
local old_bytes = old and #old or 0
if not old and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
    return -1
end
if tonumber(redis.call('GET', KEYS[2]) or '0') - old_bytes + #ARGV[2] > tonumber(ARGV[4]) then
    return -2
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('INCRBY', KEYS[2], #ARGV[2] - old_bytes)
return old and 0 or 1
"""

_REMOVE = """
-- wye tools 1
-- KEYS  t:OWNER, ts:OWNER
-- ARGV  name
-- Returns how many tools were removed: 0 or 1.
local old = redis.call('HGET', KEYS[1], ARGV[1])
if not old then
    return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('DECRBY', KEYS[2], #old)
return 1
"""


class ToolsFull(Exception):
    """No room; the text says of what."""


class ToolStore:
    """Tools that tenants registered. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis.
        max_tools: Of one owner.
        max_bytes: Of everything that one owner has registered.
    """

    def __init__(self, url: str, *, max_tools: int, max_bytes: int) -> None:
        self._redis = connect(url)
        self._max_tools = max_tools
        self._max_bytes = max_bytes
        self._register = self._redis.register_script(_REGISTER)
        self._remove = self._redis.register_script(_REMOVE)

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    async def register(self, owner: str, name: str, record: dict[str, Any]) -> bool:
        """Keeps a tool, in place of one of the same name; says whether it is new.

        Raises:
            ToolsFull: There is no room.
            StoreUnavailable: Redis did not answer.
        """
        data = msgspec.json.encode(record)
        with unavailable("tools"):
            done = await self._register(keys=_keys(owner), args=[name, data, self._max_tools, self._max_bytes])
        if done < 0:
            most = f"{self._max_tools} tools" if done == -1 else f"{self._max_bytes} bytes of tools"
            raise ToolsFull(f"at most {most} are kept")
        return bool(done)

    async def read(self, owner: str, name: str) -> dict[str, Any] | None:
        """What was registered, or None.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("tools"):
            found = await self._redis.hget(_keys(owner)[0], name)
        return None if found is None else msgspec.json.decode(found)

    async def all(self, owner: str) -> dict[str, dict[str, Any]]:
        """Everything that an owner has registered, by name.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("tools"):
            found = await self._redis.hgetall(_keys(owner)[0])
        return {_text(name): msgspec.json.decode(record) for name, record in found.items()}

    async def remove(self, owner: str, name: str) -> bool:
        """Forgets a tool; False if there was none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("tools"):
            return bool(await self._remove(keys=_keys(owner), args=[name]))

    async def claim(self, owner: str, call_id: str) -> bool:
        """Takes an approved call to make it; False if somebody has taken it before.

        Raises:
            StoreUnavailable: Redis did not answer; the call must not be made.
        """
        with unavailable("approved calls"):
            return bool(await self._redis.set(_call_key(owner, call_id), b"", nx=True, ex=CALL_TTL_S))

    async def settle(self, owner: str, call_id: str, outcome: dict[str, Any]) -> None:
        """Writes down what an approved call came to.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("approved calls"):
            await self._redis.set(_call_key(owner, call_id), msgspec.json.encode(outcome), ex=CALL_TTL_S)

    async def is_begun(self, owner: str, call_id: str) -> bool:
        """Whether somebody has taken a call and not said what it came to.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("approved calls"):
            return await self._redis.get(_call_key(owner, call_id)) == b""

    async def outcome(self, owner: str, call_id: str) -> dict[str, Any] | None:
        """What a call that was taken before came to; None while it is made, or if whoever made it was lost.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("approved calls"):
            found = await self._redis.get(_call_key(owner, call_id))
        return msgspec.json.decode(found) if found else None


def _keys(owner: str) -> list[str]:
    return [f"{PREFIX}t:{owner}", f"{PREFIX}ts:{owner}"]


def _call_key(owner: str, call_id: str) -> str:
    return f"{PREFIX}ta:{owner}:{call_id}"


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
