"""Lua scripts that change tenants and keys, each together with its line in the audit. All are safe to repeat.

Keys, all with the prefix `{wye}:q:`; see `admit_scripts` and `quota_scripts` for the rest:

    tenants      zset    id of a tenant -> millisecond of its making
    keys:T       zset    id of a key of tenant T -> the same; `keys:` are those of administrators
    audit        stream  field d: JSON of who changed what; never cut by the server
    ledger       stream  fields of what happened to accounts: windows that ended, corrections, reaped grants
"""

from __future__ import annotations

VERSION = "1"
"""Part of each script's text: servers of different versions never share a script."""

WRITE = f"""
-- wye tenancy write {VERSION}
-- KEYS  the record, its directory, audit, done:OP
-- ARGV  mode, id, version that is to be changed or '', milliseconds of its making, audit line, field, value, ...
--       mode: create, update, delete; an empty value removes a field
-- returns  1, or 0 if there is no such record, or -1 if it is there already or has been changed meanwhile;
--          the same operation again is 1 and changes nothing
if redis.call('EXISTS', KEYS[4]) == 1 then
    return 1
end
local mode, id = ARGV[1], ARGV[2]
local is_there = redis.call('EXISTS', KEYS[1]) == 1
if mode == 'create' then
    if is_there then
        return -1
    end
    redis.call('ZADD', KEYS[2], ARGV[4], id)
elseif not is_there then
    return 0
end
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'ver') ~= ARGV[3] then
    return -1
end
if mode == 'delete' then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], id)
else
    for at = 6, #ARGV, 2 do
        if ARGV[at + 1] == '' then
            redis.call('HDEL', KEYS[1], ARGV[at])
        else
            redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
        end
    end
    redis.call('HINCRBY', KEYS[1], 'ver', 1)
end
redis.call('XADD', KEYS[3], '*', 'd', ARGV[5])
redis.call('SET', KEYS[4], '1', 'EX', 600)
return 1
"""
