"""Messages between programs of one owner, in any Redis: what `lm.publish` and `lm.push` send.

Keys, all with the prefix of the store; a channel is `t/NAME` or `q/NAME`:

    pt:OWNER:NAME   stream  a topic: `n` is the number of a message, `d` its JSON
    pq:OWNER:NAME   list    a queue: JSON, oldest first
    pmb:OWNER       hash    channel -> bytes of its messages
    pmn:OWNER       hash    channel -> number of its last message
    pmx:OWNER       zset    channel -> time in milliseconds at which it goes if nothing is sent
    pms:OWNER       string  bytes of all channels
    po:OP           string  answer to a change, for whoever asks again
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from extensions.programs.doors import Heard
from extensions.programs.faults import fault
from gateway.state.bells import CHANNEL, Bells
from gateway.state.link import connect
from gateway.state.owned import OP_MS, owned_key, told_to_programs
from gateway.state.store import PREFIX

HEARD_AT_ONCE = 16
"""Messages that a subscriber is given at a time."""

_COMMON = """
-- wye program mail 1
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function count(channel, bytes)
    redis.call('HINCRBY', KEYS[2], channel, bytes)
    redis.call('INCRBY', KEYS[5], bytes)
end
local function forget(channel)
    redis.call('DECRBY', KEYS[5], redis.call('HGET', KEYS[2], channel) or '0')
    redis.call('HDEL', KEYS[2], channel)
    redis.call('HDEL', KEYS[3], channel)
    redis.call('ZREM', KEYS[4], channel)
end
"""

_SEND = (
    _COMMON
    + """
-- KEYS  pt or pq, pmb, pmn, pmx, pms, po
-- ARGV  channel, message, most messages, most bytes of a channel, most channels, most bytes, ttl in ms,
--       ms that the answer is known, key prefix of topics, key prefix of queues, where bells ring
-- returns  1 sent, 0 the queue is full, -1 too many channels, -2 too many bytes
local channel, message = ARGV[1], ARGV[2]
local done = redis.call('GET', KEYS[6])
if done then
    return tonumber(done)
end
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)) do
    local prefix = string.sub(old, 1, 1) == 't' and ARGV[9] or ARGV[10]
    redis.call('DEL', prefix .. string.sub(old, 3))
    forget(old)
end
if not redis.call('ZSCORE', KEYS[4], channel) and redis.call('ZCARD', KEYS[4]) >= tonumber(ARGV[5]) then
    return -1
end
local is_topic = string.sub(channel, 1, 1) == 't'
local length, most, most_bytes = 0, tonumber(ARGV[3]), tonumber(ARGV[4])
if is_topic then
    length = redis.call('XLEN', KEYS[1])
    while length > 0 and (length >= most
            or tonumber(redis.call('HGET', KEYS[2], channel) or '0') + #message > most_bytes) do
        local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
        redis.call('XDEL', KEYS[1], oldest[1])
        count(channel, -#oldest[2][4])
        length = length - 1
    end
else
    length = redis.call('LLEN', KEYS[1])
    if length >= most or tonumber(redis.call('HGET', KEYS[2], channel) or '0') + #message > most_bytes then
        return 0
    end
end
if tonumber(redis.call('GET', KEYS[5]) or '0') + #message > tonumber(ARGV[6]) then
    return -2
end
local number = redis.call('HINCRBY', KEYS[3], channel, 1)
if is_topic then
    redis.call('XADD', KEYS[1], '*', 'n', number, 'd', message)
else
    redis.call('RPUSH', KEYS[1], message)
end
count(channel, #message)
redis.call('ZADD', KEYS[4], string.format('%.0f', now + tonumber(ARGV[7])), channel)
for at = 1, 5 do
    redis.call('PEXPIRE', KEYS[at], ARGV[7])
end
redis.call('SET', KEYS[6], 1, 'PX', ARGV[8])
redis.call('PUBLISH', ARGV[11], KEYS[1])
return 1
"""
)

_PULL = (
    _COMMON
    + """
-- KEYS  pq, pmb, pmn, pmx, pms, po
-- ARGV  channel, ms that the answer is known, where bells ring
-- returns  the message, or nothing
local done = redis.call('GET', KEYS[6])
if done then
    return done
end
local message = redis.call('LPOP', KEYS[1])
if not message then
    return false
end
count(ARGV[1], -#message)
if redis.call('EXISTS', KEYS[1]) == 0 then
    forget(ARGV[1])
end
redis.call('SET', KEYS[6], message, 'PX', ARGV[2])
redis.call('PUBLISH', ARGV[3], KEYS[1])
return message
"""
)

_PUT_BACK = (
    _COMMON
    + """
-- KEYS  pq, pmb, pmn, pmx, pms, po
-- ARGV  channel, ttl in ms, where bells ring
-- returns  1 if the message that was pulled under this `po` is in front of the queue again
local message = redis.call('GET', KEYS[6])
if not message then
    return 0
end
redis.call('DEL', KEYS[6])
redis.call('LPUSH', KEYS[1], message)
count(ARGV[1], #message)
redis.call('ZADD', KEYS[4], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
for at = 1, 5 do
    redis.call('PEXPIRE', KEYS[at], ARGV[2])
end
redis.call('PUBLISH', ARGV[3], KEYS[1])
return 1
"""
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MailBounds:
    """How much is kept.

    Attributes:
        messages: Of one topic or queue.
        channel_bytes: Of the messages of one.
        channels: Topics and queues of one owner.
        bytes: Of all messages of one owner.
        ttl_s: How long a topic or queue is kept after its last message.
    """

    messages: int = 1000
    channel_bytes: int = 4 * 2**20
    channels: int = 1000
    bytes: int = 32 * 2**20
    ttl_s: int = 24 * 3600


class ProgramMail:
    """The messages of all owners. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis.
        bells: Told of new messages; whoever made them closes them.
        bounds: How much is kept.
    """

    def __init__(self, url: str, bells: Bells, bounds: MailBounds | None = None) -> None:
        self.redis: Redis = connect(url)
        self.bells = bells
        self.bounds = bounds or MailBounds()
        register = self.redis.register_script
        self.sending = register(_SEND)
        self.pulling = register(_PULL)
        self.putting_back = register(_PUT_BACK)

    def of(self, owner: str) -> OwnerMail:
        """Those of one owner."""
        return OwnerMail(self, owner)

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        with contextlib.suppress(RedisError, OSError):
            await self.redis.aclose()


class OwnerMail:
    """Implements `extensions.programs.doors.Mail`.

    Args:
        store: Holds them.
        owner: Whose.
    """

    def __init__(self, store: ProgramMail, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._shared = [owned_key(kind, owner) for kind in ("pmb", "pmn", "pmx", "pms")]
        self._prefixes = [owned_key(kind, owner, "") for kind in ("pt", "pq")]

    async def publish(self, topic: str, message: bytes) -> None:
        """See `Mail`."""
        await self._send("t", topic, message, _op())

    async def newest(self, topic: str) -> str:
        """See `Mail`."""
        await self._store.bells.start()
        with told_to_programs("messages"):
            found: Any = await self._store.redis.xrevrange(self._key("t", topic), count=1)
        return _place(found[0]) if found else "0-0 0"

    async def hear(self, topic: str, place: str, timeout_s: float | None) -> Heard | None:
        """See `Mail`."""
        last, _, number = place.partition(" ")

        async def look() -> Heard | None:
            with told_to_programs("messages"):
                found = await self._store.redis.xrange(self._key("t", topic), min=f"({last}", count=HEARD_AT_ONCE)
            return _heard(found, int(number)) if found else None

        return await self._store.bells.until(self._key("t", topic), look, timeout_s)

    async def push(self, queue: str, message: bytes, timeout_s: float | None) -> None:
        """See `Mail`."""
        # One for all attempts: of one whose answer was lost, the next tells the outcome.
        op = _op()

        async def look() -> bool | None:
            return await self._pushed(queue, message, op) or None

        if await self._store.bells.until(self._key("q", queue), look, timeout_s) is None:
            bounds = self._store.bounds
            told = f"queue {queue!r} is full: {bounds.messages} messages or {bounds.channel_bytes} bytes are kept"
            raise fault("limit_exceeded", told)

    async def pull(self, queue: str, timeout_s: float | None) -> bytes | None:
        """See `Mail`."""
        op = _op()  # as of `push`

        async def look() -> bytes | None:
            return await self._pulled(queue, op)

        return await self._store.bells.until(self._key("q", queue), look, timeout_s)

    async def _pushed(self, queue: str, message: bytes, op: str) -> bool:
        """Adds a message if there is room. If this is cancelled on the way, it comes to its end all the same when the
        message is there: it is told as sent then, and is known not to be otherwise."""
        task = asyncio.ensure_future(self._send("q", queue, message, op))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if task.exception() is None and task.result():
                return True
            raise

    async def _pulled(self, queue: str, op: str) -> bytes | None:
        """Takes a message; one that nobody is there to take any more goes back to the front."""
        keys, channel = [self._key("q", queue), *self._shared, op], f"q/{queue}"

        async def pull() -> bytes | None:
            with told_to_programs("messages"):
                found: bytes | None = await self._store.pulling(keys=keys, args=[channel, str(OP_MS), CHANNEL])
            return found

        task = asyncio.ensure_future(pull())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if task.exception() is None and task.result() is not None:
                args = [channel, self._ttl_ms, CHANNEL]
                with contextlib.suppress(RuntimeError), told_to_programs("messages"):
                    await self._store.putting_back(keys=keys, args=args)
            raise

    async def _send(self, kind: str, name: str, message: bytes, op: str) -> bool:
        bounds = self._store.bounds
        most = [bounds.messages, bounds.channel_bytes, bounds.channels, bounds.bytes]
        args: list[str | bytes] = [
            f"{kind}/{name}",
            message,
            *map(str, most),
            self._ttl_ms,
            str(OP_MS),
            *self._prefixes,
            CHANNEL,
        ]
        with told_to_programs("messages"):
            done = int(await self._store.sending(keys=[self._key(kind, name), *self._shared, op], args=args))
        if done == -1:
            raise fault("limit_exceeded", f"at most {bounds.channels} topics and queues are kept")
        if done == -2:
            raise fault("limit_exceeded", f"at most {bounds.bytes} bytes of messages are kept")
        return done > 0

    def _key(self, kind: str, name: str) -> str:
        return owned_key(f"p{kind}", self._owner, name)

    @property
    def _ttl_ms(self) -> str:
        return str(self._store.bounds.ttl_s * 1000)


def _heard(found: list[Any], number: int) -> Heard:
    first = int(found[0][1][b"n"])
    return Heard(
        messages=[fields[b"d"] for _, fields in found],
        place=_place(found[-1]),
        # Numbers begin anew where a topic was forgotten meanwhile.
        missed=max(first - number - 1, 0),
    )


def _place(entry: Any) -> str:
    return f"{entry[0].decode()} {int(entry[1][b'n'])}"


def _op() -> str:
    return f"{PREFIX}po:{uuid.uuid4().hex}"
