"""Small values of programs, in any Redis: what `lm.store` keeps.

Keys, all with the prefix of the store:

    pv:OWNER     hash    key -> JSON
    pvx:OWNER    zset    key -> time in milliseconds at which it goes, for those that go
    pvs:OWNER    string  bytes of all keys and values
    po:OP        string  answer to a change, for whoever asks again
"""

from __future__ import annotations

import contextlib
import uuid

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from extensions.programs.faults import fault, invalid
from gateway.state.link import connect
from gateway.state.owned import OP_MS, owned_key, told_to_programs
from gateway.state.store import PREFIX

_COMMON = """
-- wye program values 1
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function drop(key)
    local old = redis.call('HSTRLEN', KEYS[1], key)
    if redis.call('HDEL', KEYS[1], key) == 1 then
        redis.call('DECRBY', KEYS[3], #key + old)
    end
    redis.call('ZREM', KEYS[2], key)
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do
    drop(key)
end
local gone = redis.call('ZSCORE', KEYS[2], ARGV[1])
if gone and tonumber(gone) <= now then
    drop(ARGV[1])
end
local function room(size)
    local old = redis.call('HGET', KEYS[1], ARGV[1])
    local grows = size - (old and #old or -#ARGV[1])
    if not old and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[2]) then
        return nil
    end
    if grows > 0 and tonumber(redis.call('GET', KEYS[3]) or '0') + grows > tonumber(ARGV[3]) then
        return nil
    end
    return grows
end
"""

_GET = (
    _COMMON
    + """
-- KEYS  pv, pvx, pvs
-- ARGV  key
-- returns  the value, or nothing
return redis.call('HGET', KEYS[1], ARGV[1])
"""
)

_PUT = (
    _COMMON
    + """
-- KEYS  pv, pvx, pvs, po
-- ARGV  key, most keys, most bytes, value, ttl in ms or '', '1' only if new, ms that the answer is known
-- returns  1 kept, 0 there was one, -1 no room
local done = redis.call('GET', KEYS[4])
if done then
    return tonumber(done)
end
local answer = 1
if ARGV[6] == '1' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    answer = 0
else
    local grows = room(#ARGV[4])
    if not grows then
        answer = -1
    else
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
        redis.call('INCRBY', KEYS[3], grows)
        redis.call('ZREM', KEYS[2], ARGV[1])
        if ARGV[5] ~= '' then
            redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[5])), ARGV[1])
        end
    end
end
redis.call('SET', KEYS[4], answer, 'PX', ARGV[7])
return answer
"""
)

_ADD = (
    _COMMON
    + """
-- KEYS  pv, pvx, pvs, po
-- ARGV  key, most keys, most bytes, amount, ms that the answer is known
-- returns  the sum as JSON, or 'full', 'kind' if something else is there, 'large' if no number can hold the sum
local done = redis.call('GET', KEYS[4])
if done then
    return done
end
local old = redis.call('HGET', KEYS[1], ARGV[1]) or '0'
local answer
if not string.find(old, '^%-?[0-9]') then
    answer = 'kind'
else
    local sum = tonumber(old) + tonumber(ARGV[4])
    local is_whole = not string.find(old .. ARGV[4], '[%.eE]')
    if sum ~= sum or math.abs(sum) == math.huge or (is_whole and math.abs(sum) >= 9007199254740992) then
        answer = 'large'
    else
        answer = string.format(is_whole and '%.0f' or '%.17g', sum)
        if not is_whole and not string.find(answer, '[%.e]') then
            answer = answer .. '.0'
        end
        local grows = room(#answer)
        if not grows then
            answer = 'full'
        else
            redis.call('HSET', KEYS[1], ARGV[1], answer)
            redis.call('INCRBY', KEYS[3], grows)
        end
    end
end
redis.call('SET', KEYS[4], answer, 'PX', ARGV[5])
return answer
"""
)

_DELETE = (
    _COMMON
    + """
-- KEYS  pv, pvx, pvs, po
-- ARGV  key, ms that the answer is known
-- returns  1 if there was one
local done = redis.call('GET', KEYS[4])
if done then
    return tonumber(done)
end
local found = redis.call('HEXISTS', KEYS[1], ARGV[1])
drop(ARGV[1])
redis.call('SET', KEYS[4], found, 'PX', ARGV[2])
return found
"""
)


class ProgramValues:
    """The values of all owners. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis.
        max_keys: Of one owner.
        max_bytes: Of all keys and values of one owner.
    """

    def __init__(self, url: str, *, max_keys: int, max_bytes: int) -> None:
        self.redis: Redis = connect(url)
        self.bounds = (str(max_keys), str(max_bytes))
        register = self.redis.register_script
        self.getting = register(_GET)
        self.putting = register(_PUT)
        self.adding = register(_ADD)
        self.deleting = register(_DELETE)

    def of(self, owner: str) -> OwnerValues:
        """Those of one owner."""
        return OwnerValues(self, owner)

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        with contextlib.suppress(RedisError, OSError):
            await self.redis.aclose()


class OwnerValues:
    """Implements `extensions.programs.doors.ValueStore`.

    Args:
        store: Holds them.
        owner: Whose.
    """

    def __init__(self, store: ProgramValues, owner: str) -> None:
        self._store = store
        self._keys = [owned_key(kind, owner) for kind in ("pv", "pvx", "pvs")]

    async def get(self, key: str) -> bytes | None:
        """See `ValueStore`."""
        with told_to_programs("values"):
            found: bytes | None = await self._store.getting(keys=self._keys, args=[key])
        return found

    async def put(self, key: str, value: bytes, *, ttl_s: float | None, only_new: bool) -> bool:
        """See `ValueStore`."""
        ttl_ms = "" if ttl_s is None else str(max(int(ttl_s * 1000), 1))
        args: list[str | bytes] = [key, *self._store.bounds, value, ttl_ms, str(int(only_new)), str(OP_MS)]
        with told_to_programs("values"):
            done = int(await self._store.putting(keys=[*self._keys, _op()], args=args))
        if done < 0:
            raise self._full()
        return done > 0

    async def add(self, key: str, amount: int | float) -> int | float:
        """See `ValueStore`."""
        args = [key, *self._store.bounds, repr(amount), str(OP_MS)]
        with told_to_programs("values"):
            answer = (await self._store.adding(keys=[*self._keys, _op()], args=args)).decode()
        if answer == "full":
            raise self._full()
        if answer == "kind":
            raise invalid("the value under this key is no number")
        if answer == "large":
            raise invalid("the sum is too large")
        total: int | float = msgspec.json.decode(answer)
        return total

    async def delete(self, key: str) -> bool:
        """See `ValueStore`."""
        with told_to_programs("values"):
            return bool(await self._store.deleting(keys=[*self._keys, _op()], args=[key, str(OP_MS)]))

    def _full(self) -> Exception:
        count, size = self._store.bounds
        return fault("limit_exceeded", f"at most {count} values of {size} bytes together are kept")


def _op() -> str:
    return f"{PREFIX}po:{uuid.uuid4().hex}"
