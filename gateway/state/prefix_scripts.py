"""What Redis does with exported prefixes in one step each.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    px:ID        hash    fields of one prefix; goes a while after its time is over, so that its end can be told
    pxt:ID       string  its token ids, compressed; goes with its time
    pxn:OWNER    hash    name -> "version id" of the newest
    pxo:OWNER    zset    id -> time in milliseconds at which its own is over
    pxb:OWNER    hash    id -> "bytes name"
    pxs:OWNER    string  bytes of all of them

Fields that scripts look into: `owner`, `name`, `version`, `ttl_ms`, `ttl_mode` (`fixed` or `sliding`), `expires_ms`,
`last_used_ms`, `imports`, `hit_tokens`, `etag`, `seen` (what changed it last). All others are the gateway's own.
"""

from __future__ import annotations

TOMB_MS = 24 * 3_600_000
"""How long it is remembered that a prefix was there."""

_NOW = """
-- wye prefixes 1
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number)
    return string.format('%.0f', number)
end
"""

_FORGET = """
local function forget(names, order, sizes, sum, id)
    local entry = redis.call('HGET', sizes, id)
    if entry then
        local size, name = string.match(entry, '^(%d+) (.*)$')
        redis.call('DECRBY', sum, size)
        redis.call('HDEL', sizes, id)
        local newest = redis.call('HGET', names, name)
        if newest and string.match(newest, ' (.*)$') == id then
            redis.call('HDEL', names, name)
        end
    end
    redis.call('ZREM', order, id)
end
"""

_KEEP = """
local function keep(record, tokens, order, id, expires)
    redis.call('HSET', record, 'expires_ms', text(expires))
    redis.call('PEXPIREAT', record, text(expires + tonumber(ARGV[2])))
    redis.call('PEXPIREAT', tokens, text(expires))
    redis.call('ZADD', order, text(expires), id)
end
"""

CREATE = (
    _NOW
    + _FORGET
    + _KEEP
    + """
-- KEYS  px:ID, pxt:ID, pxn:OWNER, pxo:OWNER, pxb:OWNER, pxs:OWNER
-- ARGV  id, ms that its end is known, name, token ids, ttl in ms, most prefixes, most bytes, field, value, ...
-- Returns its version, -1 if there are too many prefixes, -2 if too many bytes.
local version = redis.call('HGET', KEYS[1], 'version')
if version then
    return tonumber(version)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text(now), 'LIMIT', 0, 100)) do
    forget(KEYS[3], KEYS[4], KEYS[5], KEYS[6], id)
end
if redis.call('ZCARD', KEYS[4]) >= tonumber(ARGV[6]) then
    return -1
end
local size = #ARGV[4]
for at = 8, #ARGV do
    size = size + #ARGV[at]
end
if tonumber(redis.call('GET', KEYS[6]) or '0') + size > tonumber(ARGV[7]) then
    return -2
end
local newest = redis.call('HGET', KEYS[3], ARGV[3])
version = newest and tonumber(string.match(newest, '^%d+')) + 1 or 1
for at = 8, #ARGV, 2 do
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
redis.call('HSET', KEYS[1], 'name', ARGV[3], 'version', version, 'ttl_ms', ARGV[5], 'etag', 1, 'imports', 0)
redis.call('HSET', KEYS[1], 'hit_tokens', 0, 'last_used_ms', text(now), 'created_ms', text(now))
redis.call('SET', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[3], version .. ' ' .. ARGV[1])
redis.call('HSET', KEYS[5], ARGV[1], size .. ' ' .. ARGV[3])
redis.call('INCRBY', KEYS[6], size)
keep(KEYS[1], KEYS[2], KEYS[4], ARGV[1], now + tonumber(ARGV[5]))
return version
"""
)

READ = (
    _NOW
    + """
-- KEYS  px:ID
-- Returns the time in ms, then field, value, ...; the time alone if there is none.
local found = redis.call('HGETALL', KEYS[1])
table.insert(found, 1, text(now))
return found
"""
)

USE = (
    _NOW
    + _KEEP
    + """
-- KEYS  px:ID, pxt:ID, pxo:OWNER
-- ARGV  id, ms that its end is known, tokens that needed no computing, name of this use
-- Returns ms that are left, 0 if its time is over or it is not there.
local found = redis.call('HMGET', KEYS[1], 'expires_ms', 'ttl_ms', 'ttl_mode', 'seen')
if not found[1] or tonumber(found[1]) <= now then
    return 0
end
if found[4] ~= ARGV[4] then
    redis.call('HSET', KEYS[1], 'last_used_ms', text(now), 'seen', ARGV[4])
    redis.call('HINCRBY', KEYS[1], 'imports', 1)
    redis.call('HINCRBY', KEYS[1], 'hit_tokens', ARGV[3])
end
local expires = tonumber(found[1])
if found[3] == 'sliding' then
    expires = now + tonumber(found[2])
    keep(KEYS[1], KEYS[2], KEYS[3], ARGV[1], expires)
end
return expires - now
"""
)

UPDATE = (
    _NOW
    + _KEEP
    + """
-- KEYS  px:ID, pxt:ID, pxo:OWNER
-- ARGV  id, ms that its end is known, etag that it must have or '', ms that are left from now or '', name of this
--       change, field, value, ...
-- Returns 1, 0 if it is not there or its time is over, -1 if it has another etag.
local found = redis.call('HMGET', KEYS[1], 'expires_ms', 'etag', 'seen')
if not found[1] or tonumber(found[1]) <= now then
    return 0
end
if found[3] == ARGV[5] then
    return 1
end
if ARGV[3] ~= '' and ARGV[3] ~= found[2] then
    return -1
end
for at = 6, #ARGV, 2 do
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
redis.call('HINCRBY', KEYS[1], 'etag', 1)
redis.call('HSET', KEYS[1], 'seen', ARGV[5])
if ARGV[4] ~= '' then
    keep(KEYS[1], KEYS[2], KEYS[3], ARGV[1], now + tonumber(ARGV[4]))
end
return 1
"""
)

DELETE = (
    _NOW
    + _FORGET
    + """
-- KEYS  px:ID, pxt:ID, pxn:OWNER, pxo:OWNER, pxb:OWNER, pxs:OWNER
-- ARGV  id
-- Returns nothing.
forget(KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2])
"""
)
