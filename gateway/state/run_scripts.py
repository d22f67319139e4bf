"""Lua scripts of detached runs. Each changes a run and the counts that bound it in one step; all are safe to repeat.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    pr:ID       hash    a run: `owner`, `status`, `token` of whoever works on it, `cancel`, `head`, `answer` and `error`
                        in JSON, `created` and `ended` in milliseconds, `last` (number of the last event), `first` (of
                        the first that is still there), `event_bytes`, `inputs`, `input_bytes`, `journal_bytes`,
                        `journal` (number of its last part), `lives` (how often somebody went on with it), `handed` (how
                        often because it was handed over), `left` (when it was, while nobody has gone on with it),
                        `parked` (for how many milliseconds nobody had, all of them together), `fixed` (why nobody can;
                        else it is not there)
    pe:ID       stream  its events; field `d` holds some of them, one a line, `n` the number of the last of those
    pi:ID       list    its input, JSON
    pj:ID       list    its journal; the first element is what it was begun with
    pm:ID       hash    what has given something out -> how much of that is among the events
    plx         zset    run id -> time in milliseconds until which somebody works on it
    prn:OWNER   zset    run id -> time of its creation in milliseconds
    prx:OWNER   zset    run id -> time in milliseconds at which it goes, for those that have ended
    prb:OWNER   hash    run id -> bytes it is counted with
    prs:OWNER   string  sum of those
    po:OP       string  answer to a change, for whoever asks again
"""

from __future__ import annotations

OVERHEAD_BYTES = 512
"""What a run is counted with besides its contents."""

_COMMON = """
-- wye runs 1
local prefix, id = ARGV[1], ARGV[2]
local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function whole(number)
    return string.format('%.0f', number)
end
local function count(owner, run, bytes)
    redis.call('HINCRBY', prefix .. 'prb:' .. owner, run, bytes)
    redis.call('INCRBY', prefix .. 'prs:' .. owner, bytes)
end
local function drop(owner, run)
    local size = redis.call('HGET', prefix .. 'prb:' .. owner, run)
    if size then
        redis.call('DECRBY', prefix .. 'prs:' .. owner, size)
        redis.call('HDEL', prefix .. 'prb:' .. owner, run)
    end
    redis.call('ZREM', prefix .. 'prn:' .. owner, run)
    redis.call('ZREM', prefix .. 'prx:' .. owner, run)
    redis.call('ZREM', prefix .. 'plx', run)
    for _, kind in ipairs({'pr:', 'pe:', 'pi:', 'pj:', 'pm:'}) do
        redis.call('DEL', prefix .. kind .. run)
    end
end
local function expire(owner)
    local old = redis.call('ZRANGEBYSCORE', prefix .. 'prx:' .. owner, '-inf', now_ms(), 'LIMIT', 0, 100)
    for _, run in ipairs(old) do
        drop(owner, run)
    end
end
local function drop_oldest(owner)
    local oldest = redis.call('ZRANGE', prefix .. 'prx:' .. owner, 0, 0)[1]
    if oldest and oldest ~= id then
        drop(owner, oldest)
        return true
    end
    return false
end
local function bound(owner, max_bytes)
    while tonumber(redis.call('GET', prefix .. 'prs:' .. owner) or '0') > max_bytes do
        if not drop_oldest(owner) then
            break
        end
    end
end
-- Longer than any of the runs, so that these can still be counted off.
local function keep(owner, ms)
    ms = 2 * ms + 3600000
    for _, kind in ipairs({'prn:', 'prx:', 'prb:', 'prs:'}) do
        if redis.call('PTTL', prefix .. kind .. owner) < ms then
            redis.call('PEXPIRE', prefix .. kind .. owner, whole(ms))
        end
    end
end
local function forget_journal(owner)
    local key = prefix .. 'pr:' .. id
    local size = tonumber(redis.call('HGET', key, 'journal_bytes') or '0')
    if size > 0 then
        count(owner, id, -size)
        redis.call('HSET', key, 'journal_bytes', 0)
    end
    redis.call('DEL', prefix .. 'pj:' .. id, prefix .. 'pm:' .. id)
end
-- Part `number` of the journal, if it is not there yet; or why it ends.
local function write(owner, number, journal, fixed, ms)
    local key = prefix .. 'pr:' .. id
    if #fixed > 0 then
        redis.call('HSET', key, 'fixed', fixed)
        forget_journal(owner)
    elseif #journal > 0 and tonumber(redis.call('HGET', key, 'journal') or '0') < number then
        redis.call('RPUSH', prefix .. 'pj:' .. id, journal)
        redis.call('PEXPIRE', prefix .. 'pj:' .. id, ms)
        redis.call('HSET', key, 'journal', number)
        redis.call('HINCRBY', key, 'journal_bytes', #journal)
        count(owner, id, #journal)
    end
end
-- Events `last` and before, if they are not there yet; the oldest go where one run has too many.
local function tell(owner, last, events, max_event_bytes, marks)
    local key = prefix .. 'pr:' .. id
    if #events == 0 or tonumber(redis.call('HGET', key, 'last')) >= last then
        return
    end
    redis.call('XADD', prefix .. 'pe:' .. id, '*', 'n', last, 'd', events)
    if marks and #marks > 0 then
        for source, amount in pairs(cjson.decode(marks)) do
            redis.call('HINCRBY', prefix .. 'pm:' .. id, source, amount)
        end
    end
    redis.call('HSET', key, 'last', last)
    count(owner, id, #events)
    local size = redis.call('HINCRBY', key, 'event_bytes', #events)
    while size > max_event_bytes and redis.call('XLEN', prefix .. 'pe:' .. id) > 1 do
        local oldest = redis.call('XRANGE', prefix .. 'pe:' .. id, '-', '+', 'COUNT', 1)[1]
        redis.call('XDEL', prefix .. 'pe:' .. id, oldest[1])
        count(owner, id, -#oldest[2][4])
        redis.call('HSET', key, 'first', tonumber(oldest[2][2]) + 1)
        size = redis.call('HINCRBY', key, 'event_bytes', -#oldest[2][4])
    end
end
-- What is kept of a run that has not ended is kept for so long from here on.
local function prolong(owner, ms)
    for _, kind in ipairs({'pr:', 'pe:', 'pi:', 'pj:', 'pm:'}) do
        redis.call('PEXPIRE', prefix .. kind .. id, ms)
    end
    keep(owner, tonumber(ms))
end
local function finish(owner, status, answer, problem, ttl_ms)
    local key = prefix .. 'pr:' .. id
    local now = now_ms()
    forget_journal(owner)
    redis.call('HSET', key, 'status', status, 'ended', whole(now), 'answer', answer, 'error', problem)
    redis.call('HDEL', key, 'token')
    count(owner, id, #answer + #problem)
    redis.call('ZREM', prefix .. 'plx', id)
    redis.call('ZADD', prefix .. 'prx:' .. owner, whole(now + ttl_ms), id)
    for _, kind in ipairs({'pr:', 'pe:', 'pi:'}) do
        redis.call('PEXPIRE', prefix .. kind .. id, whole(ttl_ms))
    end
    keep(owner, ttl_ms)
end
"""

CREATE = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, owner, token, head, lease in ms, most runs, most bytes, longest time until it is forgotten in ms,
--       what it was begun with or ''
-- returns  1, or 0 if the owner has too many that have not ended
local owner, token = ARGV[3], ARGV[4]
if redis.call('HGET', KEYS[1], 'token') == token then
    return 1
end
expire(owner)
while redis.call('ZCARD', prefix .. 'prn:' .. owner) >= tonumber(ARGV[7]) do
    if not drop_oldest(owner) then
        return 0
    end
end
local now = now_ms()
redis.call('HSET', KEYS[1], 'owner', owner, 'status', 'in_progress', 'token', token, 'head', ARGV[5],
    'created', whole(now), 'last', -1, 'first', 0, 'event_bytes', 0, 'inputs', 0, 'input_bytes', 0)
redis.call('PEXPIRE', KEYS[1], ARGV[9])
if #ARGV[10] > 0 then
    redis.call('RPUSH', prefix .. 'pj:' .. id, ARGV[10])
    redis.call('PEXPIRE', prefix .. 'pj:' .. id, ARGV[9])
    redis.call('HSET', KEYS[1], 'journal_bytes', #ARGV[10])
    count(owner, id, #ARGV[10])
end
redis.call('ZADD', prefix .. 'prn:' .. owner, whole(now), id)
redis.call('ZADD', prefix .. 'plx', whole(now + tonumber(ARGV[6])), id)
count(owner, id, #ARGV[5] + #id + """
    + str(OVERHEAD_BYTES)
    + """)
keep(owner, tonumber(ARGV[9]))
bound(owner, tonumber(ARGV[8]))
return 1
"""
)

APPEND = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, token, number of the last event, events, most bytes of events, most bytes, longest time in ms,
--       number of a part of the journal, the part or '', why there is no more of it or '', what gave out the events
-- returns  1, or 0 if the run is gone, or -1 if it is somebody else's by now
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then
    return 0
end
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[3] then
    return -1
end
write(owner, tonumber(ARGV[9]), ARGV[10], ARGV[11], ARGV[8])
tell(owner, tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[12])
for _, kind in ipairs({'pe:', 'pj:', 'pm:'}) do
    redis.call('PEXPIRE', prefix .. kind .. id, ARGV[8])
end
bound(owner, tonumber(ARGV[7]))
return 1
"""
)

SETTLE = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, token, number of the last event, events, most bytes of events, most bytes, status, answer, error,
--       how long it is kept in ms, where bells ring
-- returns  1, or 0 if the run is gone, or -1 if it is somebody else's by now
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then
    return 0
end
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[3] then
    local ended = redis.call('HMGET', KEYS[1], 'last', 'answer')
    return ended[1] == ARGV[4] and ended[2] == ARGV[9] and 1 or -1
end
tell(owner, tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]))
finish(owner, ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11]))
bound(owner, tonumber(ARGV[7]))
redis.call('PUBLISH', ARGV[12], KEYS[1])
return 1
"""
)

GIVE_UP = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, number of the last event, events, most bytes of events, error, how long it is kept in ms,
--       where bells ring, status
-- returns  1 if nobody works on the run, which has ended so now; 0 if that is not so, or it has other events by now
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then
    redis.call('ZREM', prefix .. 'plx', id)
    return 0
end
local until_ms = redis.call('ZSCORE', prefix .. 'plx', id)
if not until_ms or tonumber(until_ms) > now_ms() then
    return 0
end
if redis.call('HGET', KEYS[1], 'status') ~= 'in_progress' then
    redis.call('ZREM', prefix .. 'plx', id)
    return 0
end
if tonumber(redis.call('HGET', KEYS[1], 'last')) ~= tonumber(ARGV[3]) - 1 then
    return 0
end
tell(owner, tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]))
finish(owner, ARGV[9], '{}', ARGV[6], tonumber(ARGV[7]))
redis.call('PUBLISH', ARGV[8], KEYS[1])
return 1
"""
)

HAND_OVER = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, token, longest time in ms
-- returns  1 if nobody works on the run any more and others may go on with it, or it is gone or somebody else's; 0 if
--          nobody may
local found = redis.call('HMGET', KEYS[1], 'owner', 'token', 'fixed')
if not found[1] or found[2] ~= ARGV[3] then
    return 1
end
if found[3] or redis.call('EXISTS', prefix .. 'pj:' .. id) == 0 then
    return 0
end
local now = now_ms()
redis.call('HDEL', KEYS[1], 'token')
redis.call('HSET', KEYS[1], 'left', whole(now))
redis.call('HINCRBY', KEYS[1], 'handed', 1)
redis.call('ZADD', prefix .. 'plx', whole(now - 1), id)
prolong(found[1], ARGV[4])
return 1
"""
)

GO_ON = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, token of whoever goes on with the run, whether that is whoever works on it, lease in ms, most lives
-- returns  how many lives that makes, or 0 if nobody may go on with it, or somebody works on it; what was handed over
--          does not count against the most
local found = redis.call('HMGET', KEYS[1], 'owner', 'status', 'fixed', 'token', 'cancel', 'lives', 'handed', 'left')
if not found[1] or found[2] ~= 'in_progress' or found[3] or redis.call('EXISTS', prefix .. 'pj:' .. id) == 0 then
    return 0
end
if not found[8] and tonumber(found[6] or '0') - tonumber(found[7] or '0') >= tonumber(ARGV[6]) then
    return 0
end
local now = now_ms()
if ARGV[4] == '1' then
    if found[4] ~= ARGV[3] then
        return 0
    end
else
    local until_ms = redis.call('ZSCORE', prefix .. 'plx', id)
    if found[5] or not until_ms or tonumber(until_ms) > now then
        return 0
    end
    redis.call('HSET', KEYS[1], 'token', ARGV[3])
    if found[8] then
        redis.call('HINCRBY', KEYS[1], 'parked', whole(math.max(now - tonumber(found[8]), 0)))
        redis.call('HDEL', KEYS[1], 'left')
    end
end
redis.call('ZADD', prefix .. 'plx', whole(now + tonumber(ARGV[5])), id)
return redis.call('HINCRBY', KEYS[1], 'lives', 1)
"""
)

BEAT = (
    _COMMON
    + """
-- KEYS  plx
-- ARGV  prefix, lease in ms, id, token, id, token, ...
-- returns  for each run 1, or 2 if it is to be cancelled, or 0 if it is gone or somebody else's
local told = {}
for at = 3, #ARGV, 2 do
    local key = prefix .. 'pr:' .. ARGV[at]
    if redis.call('HGET', key, 'token') ~= ARGV[at + 1] then
        told[#told + 1] = 0
    else
        redis.call('ZADD', KEYS[1], whole(now_ms() + tonumber(ARGV[2])), ARGV[at])
        told[#told + 1] = redis.call('HEXISTS', key, 'cancel') == 1 and 2 or 1
    end
end
return told
"""
)

OVERDUE = (
    _COMMON
    + """
-- KEYS  plx
-- ARGV  prefix
-- returns  ids of runs that nobody works on, each followed by 1 if it was handed over, else by 0
local told = {}
for _, run in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, 100)) do
    told[#told + 1] = run
    told[#told + 1] = redis.call('HEXISTS', prefix .. 'pr:' .. run, 'left')
end
return told
"""
)

PAGE = (
    _COMMON
    + """
-- KEYS  prn:OWNER
-- ARGV  prefix, '', owner, id of the last run of the page before or '', how many
-- returns  ids, the newest first, or nothing if there is no such run
expire(ARGV[3])
local start = 0
if ARGV[4] ~= '' then
    local rank = redis.call('ZREVRANK', KEYS[1], ARGV[4])
    if not rank then
        return false
    end
    start = rank + 1
end
return redis.call('ZREVRANGE', KEYS[1], start, start + tonumber(ARGV[5]) - 1)
"""
)

INPUT = (
    _COMMON
    + """
-- KEYS  pr:ID, pi:ID, po:OP
-- ARGV  prefix, id, owner, input, most inputs, most bytes of inputs, longest time in ms, ms that the answer is known,
--       where bells ring
-- returns  how many inputs that makes, or 0 if there is no such run, -1 if it has ended, -2 if it had too many
local done = redis.call('GET', KEYS[3])
if done then
    return tonumber(done)
end
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[3] then
    return 0
end
if redis.call('HGET', KEYS[1], 'status') ~= 'in_progress' then
    return -1
end
local had = redis.call('HMGET', KEYS[1], 'inputs', 'input_bytes')
if tonumber(had[1]) >= tonumber(ARGV[5]) or tonumber(had[2]) + #ARGV[4] > tonumber(ARGV[6]) then
    return -2
end
redis.call('RPUSH', KEYS[2], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
redis.call('HINCRBY', KEYS[1], 'input_bytes', #ARGV[4])
count(ARGV[3], id, #ARGV[4])
local number = redis.call('HINCRBY', KEYS[1], 'inputs', 1)
redis.call('SET', KEYS[3], number, 'PX', ARGV[8])
redis.call('PUBLISH', ARGV[9], KEYS[1])
return number
"""
)

CANCEL = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, where bells ring
-- returns  1 if whoever works on the run is told to end it
if redis.call('HGET', KEYS[1], 'status') ~= 'in_progress' then
    return 0
end
redis.call('HSET', KEYS[1], 'cancel', 1)
redis.call('PUBLISH', ARGV[3], KEYS[1])
return 1
"""
)

DROP = (
    _COMMON
    + """
-- KEYS  pr:ID
-- ARGV  prefix, id, where bells ring
-- returns  1 if there was one
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then
    return 0
end
drop(owner, id)
redis.call('PUBLISH', ARGV[3], KEYS[1])
return 1
"""
)
