"""Lua scripts of batches; keys are told in `gateway.state.file_scripts`.

Whoever works on a batch holds its lease: a token, and a time until which nobody else may take it. What a holder writes
is refused once somebody else holds the batch.
"""

from __future__ import annotations

from gateway.state.file_scripts import COMMON

_COMMON = (
    COMMON
    + """
local function is_holder(key, token)
    return redis.call('HGET', key, 'lease') == token
end
local function drop_batch(id)
    local owner = redis.call('HGET', prefix .. 'b:' .. id, 'owner') or ''
    redis.call('DEL', prefix .. 'b:' .. id, prefix .. 'bl:' .. id)
    redis.call('ZREM', prefix .. 'bo:' .. owner, id)
    redis.call('ZREM', prefix .. 'b_ended', id)
end
"""
)

CREATE = (
    _COMMON
    + """
-- KEYS  b:ID
-- ARGV  prefix, id, owner, most open ones, most ended ones, ms that those are kept, field, value, ...
-- returns  1, or 0 if too many are open
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 1
end
if redis.call('ZCARD', prefix .. 'b_open') >= tonumber(ARGV[4]) then
    return 0
end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], unpack(ARGV, 7))
local seq = redis.call('INCR', prefix .. 'seq')
redis.call('ZADD', prefix .. 'bo:' .. ARGV[3], seq, ARGV[2])
redis.call('ZADD', prefix .. 'b_open', seq, ARGV[2])
local ended = prefix .. 'b_ended'
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', now_ms() - ARGV[6], 'LIMIT', 0, 100)) do
    drop_batch(id)
end
while redis.call('ZCARD', ended) > tonumber(ARGV[5]) do
    drop_batch(redis.call('ZRANGE', ended, 0, 0)[1])
end
return 1
"""
)

LIST = (
    _COMMON
    + """
-- KEYS  bo:OWNER
-- ARGV  prefix, id to go on after or '', most
-- returns  ids, newest first, or nothing if there is no batch to go on after
local from = '+inf'
if ARGV[2] ~= '' then
    local score = redis.call('ZSCORE', KEYS[1], ARGV[2])
    if not score then
        return false
    end
    from = '(' .. score
end
return redis.call('ZREVRANGEBYSCORE', KEYS[1], from, '-inf', 'LIMIT', 0, ARGV[3])
"""
)

CLAIM = (
    _COMMON
    + """
-- KEYS  b_open
-- ARGV  prefix, token, lease in ms
-- returns  id of a batch that nobody works on and how often it has been taken; or nothing
local now = now_ms()
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local key = prefix .. 'b:' .. id
    local token, until_ms = unpack(redis.call('HMGET', key, 'lease', 'lease_until'))
    if token == ARGV[2] or tonumber(until_ms or '0') < now then
        if token ~= ARGV[2] then
            redis.call('HINCRBY', key, 'epoch', 1)
            redis.call('HINCRBY', key, 'fruitless', 1)
        end
        redis.call('HSET', key, 'lease', ARGV[2], 'lease_until', string.format('%.0f', now + ARGV[3]))
        return {id, redis.call('HGET', key, 'epoch')}
    end
end
return false
"""
)

RENEW = (
    _COMMON
    + """
-- KEYS  b:ID
-- ARGV  prefix, token, lease in ms
-- returns  the status, or nothing if somebody else holds the batch or it is gone
if not is_holder(KEYS[1], ARGV[2]) then
    return false
end
redis.call('HSET', KEYS[1], 'lease_until', string.format('%.0f', now_ms() + ARGV[3]))
return redis.call('HGET', KEYS[1], 'status')
"""
)

RELEASE = (
    _COMMON
    + """
-- KEYS  b:ID
-- ARGV  prefix, token
-- returns  1 if it was held
if not is_holder(KEYS[1], ARGV[2]) then
    return 0
end
redis.call('HDEL', KEYS[1], 'lease', 'lease_until')
redis.call('HSET', KEYS[1], 'fruitless', 0)
return 1
"""
)

MOVE = (
    _COMMON
    + """
-- KEYS  b:ID
-- ARGV  prefix, token or '' if anybody may, new status, time in s, number of old statuses, old status, ..., field, ...
-- returns  1, or 0 if its status is another one, or -1 if it is held by somebody else
if ARGV[2] ~= '' and not is_holder(KEYS[1], ARGV[2]) then
    return -1
end
local status, first = redis.call('HGET', KEYS[1], 'status'), 6 + ARGV[5]
if status == ARGV[3] then
    return 1
end
for at = 6, first - 1 do
    if status == ARGV[at] then
        redis.call('HSET', KEYS[1], 'status', ARGV[3], ARGV[3] .. '_at', ARGV[4], unpack(ARGV, first))
        return 1
    end
end
return 0
"""
)

RECORD = (
    _COMMON
    + """
-- KEYS  b:ID, bl:ID
-- ARGV  prefix, token, number of counters, counter, amount, ..., line, place, completed or failed, ...
-- returns  1, or 0 if it is held by somebody else
if not is_holder(KEYS[1], ARGV[2]) then
    return 0
end
local first, is_new = 4 + 2 * ARGV[3], false
for at = first, #ARGV, 3 do
    if redis.call('HSETNX', KEYS[2], ARGV[at], ARGV[at + 1]) == 1 then
        redis.call('HINCRBY', KEYS[1], ARGV[at + 2], 1)
        is_new = true
    end
end
if is_new then
    redis.call('HSET', KEYS[1], 'fruitless', 0)
    for at = 4, first - 1, 2 do
        redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1])
    end
end
return 1
"""
)

FINISH = (
    _COMMON
    + """
-- KEYS  b:ID, bl:ID
-- ARGV  prefix, id, token, new status, time in s, number of fields, field, value, ...,
--       id, doc, owner, purpose, bytes, expires_ms of a file, ...
-- returns  1, or 0 if it is held by somebody else or has ended
if redis.call('HGET', KEYS[1], 'finisher') == ARGV[3] then
    return 1
end
if not is_holder(KEYS[1], ARGV[3]) then
    return 0
end
local first = 7 + 2 * ARGV[6]
for at = 7, first - 1, 2 do
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
for at = first, #ARGV, 6 do
    add_file(unpack(ARGV, at, at + 5))
end
redis.call('HSET', KEYS[1], 'status', ARGV[4], ARGV[4] .. '_at', ARGV[5], 'finisher', ARGV[3])
redis.call('HDEL', KEYS[1], 'lease', 'lease_until')
redis.call('DEL', KEYS[2])
redis.call('ZREM', prefix .. 'b_open', ARGV[2])
redis.call('ZADD', prefix .. 'b_ended', string.format('%.0f', now_ms()), ARGV[2])
return 1
"""
)
