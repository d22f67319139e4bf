"""Lua scripts of the store. Each changes records and the counts that bound them in one step; all are safe to repeat.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    r:ID     hash    fields of one record; `owner` and `kind` always, `status` for responses, `seq` for conversations
    i:ID     hash    items of a conversation: item id -> "SEQ:JSON"
    e:ID     stream  events of a response; field `d` holds some of them, one a line
    order    zset    record id -> time of its last write in milliseconds; the oldest goes first
    sizes    hash    record id -> bytes it is counted with
    total    string  sum of `sizes`
    index    hash    item id -> id of the record that holds it
"""

from __future__ import annotations

VERSION = "1"
"""Part of each script's text: servers of different versions never share a script."""

OVERHEAD_BYTES = 512
"""What a record is counted with besides its contents."""

_COMMON = """
-- wye store %(version)s
local prefix = ARGV[1]
local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function count(id, bytes)
    redis.call('HINCRBY', prefix .. 'sizes', id, string.format('%%.0f', bytes))
    redis.call('INCRBY', prefix .. 'total', string.format('%%.0f', bytes))
end
local function unindex(id, item)
    if redis.call('HGET', prefix .. 'index', item) == id then
        redis.call('HDEL', prefix .. 'index', item)
    end
end
local function drop(id)
    for item in string.gmatch(redis.call('HGET', prefix .. 'r:' .. id, 'item_ids') or '', '%%S+') do
        unindex(id, item)
    end
    for _, item in ipairs(redis.call('HKEYS', prefix .. 'i:' .. id)) do
        unindex(id, item)
    end
    local size = redis.call('HGET', prefix .. 'sizes', id)
    if size then
        redis.call('DECRBY', prefix .. 'total', size)
    end
    redis.call('HDEL', prefix .. 'sizes', id)
    redis.call('ZREM', prefix .. 'order', id)
    redis.call('DEL', prefix .. 'r:' .. id, prefix .. 'i:' .. id, prefix .. 'e:' .. id)
end
local function expire(ttl_ms)
    local old = redis.call('ZRANGEBYSCORE', prefix .. 'order', '-inf', now_ms() - ttl_ms, 'LIMIT', 0, 100)
    for _, id in ipairs(old) do
        drop(id)
    end
end
local function bound(ttl_ms, max_count, max_bytes)
    expire(ttl_ms)
    while redis.call('ZCARD', prefix .. 'order') > max_count
        or tonumber(redis.call('GET', prefix .. 'total') or '0') > max_bytes do
        local oldest = redis.call('ZRANGE', prefix .. 'order', 0, 0)[1]
        if not oldest then
            break
        end
        drop(oldest)
    end
end
local function touch(id)
    -- Thousandths too: of records that were written in the same millisecond the first is the oldest.
    local time = redis.call('TIME')
    redis.call('ZADD', prefix .. 'order', string.format('%%.3f', time[1] * 1000 + time[2] / 1000), id)
end
""" % {"version": VERSION}  # noqa: UP031 - Lua has braces

PUT = (
    _COMMON
    + """
-- KEYS  r:ID
-- ARGV  prefix, id, ttl_ms, max_count, max_bytes, mode, overhead, number of fields, field, value, ..., item id, ...
--       mode: create; update (only what is there); settle (only a response that is queued or in progress)
-- returns  1, or 0 if there was nothing to update, or -1 if it alone is larger than max_bytes
local id, mode, first_item = ARGV[2], ARGV[6], 9 + 2 * tonumber(ARGV[8])
if mode ~= 'create' and redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
if mode == 'settle' then
    local status = redis.call('HGET', KEYS[1], 'status')
    if status ~= 'queued' and status ~= 'in_progress' then
        return 0
    end
end
local added = 0
if redis.call('HEXISTS', prefix .. 'sizes', id) == 0 then
    added = tonumber(ARGV[7])
end
for at = 9, first_item - 1, 2 do
    added = added + #ARGV[at + 1] - redis.call('HSTRLEN', KEYS[1], ARGV[at])
end
if tonumber(redis.call('HGET', prefix .. 'sizes', id) or '0') + added > tonumber(ARGV[5]) then
    return -1
end
for at = 9, first_item - 1, 2 do
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
if first_item <= #ARGV then
    local ids = table.concat(ARGV, ' ', first_item)
    added = added + 2 * #ids - redis.call('HSTRLEN', KEYS[1], 'item_ids')
    redis.call('HSET', KEYS[1], 'item_ids', ids)
    for at = first_item, #ARGV do
        redis.call('HSET', prefix .. 'index', ARGV[at], id)
    end
end
count(id, added)
touch(id)
bound(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
"""
)

READ = (
    _COMMON
    + """
-- KEYS  r:ID
-- ARGV  prefix, ttl_ms, field, ...
-- returns  the values, or nothing if there is no such record or its time is over
expire(ARGV[2])
if redis.call('EXISTS', KEYS[1]) == 0 then
    return false
end
return redis.call('HMGET', KEYS[1], unpack(ARGV, 3))
"""
)

DROP = (
    _COMMON
    + """
-- KEYS  r:ID
-- ARGV  prefix, id
-- returns  1 if there was one
local found = redis.call('EXISTS', KEYS[1])
drop(ARGV[2])
return found
"""
)

ADD_ITEMS = (
    _COMMON
    + """
-- KEYS  r:ID, i:ID
-- ARGV  prefix, id, ttl_ms, max_count, max_bytes, item id, JSON, ...
-- returns  1, or 0 if there is no such conversation, or -1 if it would be larger than max_bytes
if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
local added = 0
for at = 6, #ARGV, 2 do
    added = added + #ARGV[at + 1] + 2 * #ARGV[at]
end
if tonumber(redis.call('HGET', prefix .. 'sizes', ARGV[2])) + added > tonumber(ARGV[5]) then
    return -1
end
for at = 6, #ARGV, 2 do
    local old = redis.call('HSTRLEN', KEYS[2], ARGV[at])
    if old > 0 then
        added = added - old - 2 * #ARGV[at]
    end
    local value = redis.call('HINCRBY', KEYS[1], 'seq', 1) .. ':' .. ARGV[at + 1]
    added = added + #value - #ARGV[at + 1]
    redis.call('HSET', KEYS[2], ARGV[at], value)
    redis.call('HSET', prefix .. 'index', ARGV[at], ARGV[2])
end
count(ARGV[2], added)
touch(ARGV[2])
bound(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
"""
)

DROP_ITEM = (
    _COMMON
    + """
-- KEYS  i:ID
-- ARGV  prefix, id, item id
-- returns  1 if there was one
local size = redis.call('HSTRLEN', KEYS[1], ARGV[3])
if size == 0 then
    return 0
end
redis.call('HDEL', KEYS[1], ARGV[3])
unindex(ARGV[2], ARGV[3])
count(ARGV[2], -size - 2 * #ARGV[3])
return 1
"""
)

ADD_EVENTS = (
    _COMMON
    + """
-- KEYS  r:ID, e:ID
-- ARGV  prefix, id, ttl_ms, max_count, max_bytes, events
-- returns  1, or 0 if there is no such response
if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
redis.call('XADD', KEYS[2], '*', 'd', ARGV[6])
count(ARGV[2], #ARGV[6])
bound(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
"""
)
