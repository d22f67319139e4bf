"""Registered programs, in any Redis: versions that never change, under names of their owners.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    x:OWNER:NAME   hash    version -> JSON of what was registered
    xn:OWNER       zset    names, all with score 0
    xs:OWNER       string  bytes of all of them
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from redis.exceptions import RedisError

from gateway.state.link import connect, unavailable
from gateway.state.store import PREFIX

MAX_PAGE = 100
"""Most names of one page of a list."""

_REGISTER = """
-- wye extensions 1
-- KEYS  x:OWNER:NAME, xn:OWNER, xs:OWNER
-- ARGV  name, version, digest, record, most versions of a name, most names, most bytes
-- Returns {1, record} if it is there now, {0, record} if it was there before with the same digest,
--         {-1, record} if it was there with another, {-2}, {-3}, {-4} if there are too many versions, names, bytes.
local old = redis.call('HGET', KEYS[1], ARGV[2])
if old then
    return {cjson.decode(old).digest == ARGV[3] and 0 or -1, old}
end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then
    return {-2, ''}
end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then
    return {-3, ''}
end
if tonumber(redis.call('GET', KEYS[3]) or '0') + #ARGV[4] > tonumber(ARGV[7]) then
    return {-4, ''}
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('INCRBY', KEYS[3], #ARGV[4])
return {1, ARGV[4]}
"""

_REMOVE = """
-- wye extensions 1
-- KEYS  x:OWNER:NAME, xn:OWNER, xs:OWNER
-- ARGV  name, version
-- Returns how many versions were removed: 0 or 1.
local old = redis.call('HGET', KEYS[1], ARGV[2])
if not old then
    return 0
end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('DECRBY', KEYS[3], #old)
if redis.call('HLEN', KEYS[1]) == 0 then
    redis.call('ZREM', KEYS[2], ARGV[1])
end
return 1
"""

_FULL = {
    -2: "this program has too many versions ({most} are kept)",
    -3: "there are too many programs ({most} are kept)",
    -4: "the programs are too large together ({most} bytes are kept)",
}


class VersionTaken(Exception):
    """Another script has been registered under this name and version; versions never change."""


class ExtensionsFull(Exception):
    """No room; the text says of what."""


class ExtensionStore:
    """Registered programs. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis.
        max_names: Programs of one owner.
        max_versions: Versions of one program.
        max_bytes: Of everything that one owner has registered.
    """

    def __init__(self, url: str, *, max_names: int, max_versions: int, max_bytes: int) -> None:
        self._redis = connect(url)
        self._bounds = (max_versions, max_names, max_bytes)
        self._register = self._redis.register_script(_REGISTER)
        self._remove = self._redis.register_script(_REMOVE)

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    async def register(self, owner: str, record: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Keeps a version.

        Args:
            owner: Whose.
            record: JSON with at least `name`, `version` and `digest`.

        Returns:
            What is kept, and whether it is new: the same script may be registered again.

        Raises:
            VersionTaken: Another script has this name and version.
            ExtensionsFull: There is no room.
            StoreUnavailable: Redis did not answer.
        """
        name, version = record["name"], record["version"]
        args = [name, version, record["digest"], msgspec.json.encode(record), *self._bounds]
        with unavailable("programs"):
            done, kept = await self._register(keys=_keys(owner, name), args=args)
        if done == -1:
            raise VersionTaken
        if done < 0:
            raise ExtensionsFull(_FULL[done].format(most=self._bounds[-2 - done]))
        return msgspec.json.decode(kept), done == 1

    async def versions(self, owner: str, name: str) -> list[str]:
        """Versions of a program, in no order; empty if there is none."""
        with unavailable("programs"):
            found = await self._redis.hkeys(_keys(owner, name)[0])
        return [_text(one) for one in found]

    async def read(self, owner: str, name: str, version: str) -> dict[str, Any] | None:
        """What was registered, or None."""
        with unavailable("programs"):
            found = await self._redis.hget(_keys(owner, name)[0], version)
        return None if found is None else msgspec.json.decode(found)

    async def names(self, owner: str, after: str, limit: int) -> list[str]:
        """Names of programs in the order of the alphabet, behind one."""
        low = f"({after}" if after else "-"
        with unavailable("programs"):
            found = await self._redis.zrangebylex(_keys(owner, "")[1], low, "+", start=0, num=limit)
        return [_text(one) for one in found]

    async def of_name(self, owner: str, name: str) -> list[dict[str, Any]]:
        """Every version of a program."""
        with unavailable("programs"):
            found = await self._redis.hvals(_keys(owner, name)[0])
        return [msgspec.json.decode(one) for one in found]

    async def remove(self, owner: str, name: str, version: str) -> bool:
        """Forgets a version; False if there was none."""
        with unavailable("programs"):
            return bool(await self._remove(keys=_keys(owner, name), args=[name, version]))


def _keys(owner: str, name: str) -> list[str]:
    return [f"{PREFIX}x:{owner}:{name}", f"{PREFIX}xn:{owner}", f"{PREFIX}xs:{owner}"]


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
