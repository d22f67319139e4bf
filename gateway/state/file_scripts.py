"""Lua scripts of files and batches. Each changes all that belongs together in one step; all are safe to repeat.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    f:ID          hash    one file: `doc` (its object as JSON), `owner`, `purpose`, `bytes`, `expires_ms` (0: never)
    fo:OWNER      zset    ids of an owner's files by age
    f_expiry      zset    ids of files that expire -> when, in milliseconds
    f_totals      hash    `count` and `bytes` of all files
    b:ID          hash    one batch, see `gateway.state.batch_records`
    bl:ID         hash    where the results of a batch are: line number -> place; a line is done if it is here
    bo:OWNER      zset    ids of an owner's batches by age
    b_open        zset    ids of batches that have not ended, by age
    b_ended       zset    ids of those that have -> when, in milliseconds
    seq           string  counts whatever has an age
"""

from __future__ import annotations

VERSION = "1"
"""Part of each script's text: servers of different versions never share a script."""

COMMON = f"""
-- wye files {VERSION}
local prefix = ARGV[1]
local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function totals(count, bytes)
    redis.call('HINCRBY', prefix .. 'f_totals', 'count', count)
    redis.call('HINCRBY', prefix .. 'f_totals', 'bytes', string.format('%.0f', bytes))
end
local function add_file(id, doc, owner, purpose, bytes, expires_ms)
    local key = prefix .. 'f:' .. id
    if redis.call('EXISTS', key) == 1 then
        return
    end
    redis.call('HSET', key, 'doc', doc, 'owner', owner, 'purpose', purpose, 'bytes', bytes, 'expires_ms', expires_ms)
    redis.call('ZADD', prefix .. 'fo:' .. owner, redis.call('INCR', prefix .. 'seq'), id)
    if expires_ms ~= '0' then
        redis.call('ZADD', prefix .. 'f_expiry', expires_ms, id)
    end
    totals(1, bytes)
end
local function drop_file(id)
    local key = prefix .. 'f:' .. id
    local owner, bytes = unpack(redis.call('HMGET', key, 'owner', 'bytes'))
    if not owner then
        return 0
    end
    redis.call('DEL', key)
    redis.call('ZREM', prefix .. 'fo:' .. owner, id)
    redis.call('ZREM', prefix .. 'f_expiry', id)
    totals(-1, -bytes)
    return 1
end
local function is_expired(expires_ms)
    return expires_ms ~= '0' and tonumber(expires_ms) <= now_ms()
end
"""

ADD_FILE = (
    COMMON
    + """
-- KEYS  f:ID
-- ARGV  prefix, max_count, max_bytes, id, doc, owner, purpose, bytes, expires_ms
-- returns  1, or 0 if there are too many files, or -1 if they would be too large together
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 1
end
local known = redis.call('HMGET', prefix .. 'f_totals', 'count', 'bytes')
if tonumber(known[1] or '0') >= tonumber(ARGV[2]) then
    return 0
end
if tonumber(known[2] or '0') + tonumber(ARGV[8]) > tonumber(ARGV[3]) then
    return -1
end
add_file(unpack(ARGV, 4, 9))
return 1
"""
)

READ_FILE = (
    COMMON
    + """
-- KEYS  f:ID
-- ARGV  prefix
-- returns  doc and owner, or nothing if there is no such file or its time is over
local doc, owner, expires_ms = unpack(redis.call('HMGET', KEYS[1], 'doc', 'owner', 'expires_ms'))
if not doc or is_expired(expires_ms) then
    return false
end
return {doc, owner}
"""
)

DROP_FILE = (
    COMMON
    + """
-- KEYS  f:ID
-- ARGV  prefix, id
-- returns  1 if there was one
return drop_file(ARGV[2])
"""
)

LIST_FILES = (
    COMMON
    + """
-- KEYS  fo:OWNER
-- ARGV  prefix, id to go on after or '', asc or desc, most, purpose or ''
-- returns  docs, or nothing if there is no file to go on after
local command, from, to = 'ZRANGEBYSCORE', '-inf', '+inf'
if ARGV[3] == 'desc' then
    command, from, to = 'ZREVRANGEBYSCORE', '+inf', '-inf'
end
if ARGV[2] ~= '' then
    local score = redis.call('ZSCORE', KEYS[1], ARGV[2])
    if not score then
        return false
    end
    from = '(' .. score
end
local found, most, offset = {}, tonumber(ARGV[4]), 0
while #found < most do
    local ids = redis.call(command, KEYS[1], from, to, 'LIMIT', offset, 256)
    if #ids == 0 then
        break
    end
    offset = offset + #ids
    for _, id in ipairs(ids) do
        local key = prefix .. 'f:' .. id
        local doc, purpose, expires_ms = unpack(redis.call('HMGET', key, 'doc', 'purpose', 'expires_ms'))
        if doc and not is_expired(expires_ms) and (ARGV[5] == '' or ARGV[5] == purpose) and #found < most then
            found[#found + 1] = doc
        end
    end
end
return found
"""
)

EXPIRE_FILES = (
    COMMON
    + """
-- KEYS  f_expiry
-- ARGV  prefix
-- returns  ids of files whose time was over; at most some
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, 100)
for _, id in ipairs(ids) do
    drop_file(id)
end
return ids
"""
)
