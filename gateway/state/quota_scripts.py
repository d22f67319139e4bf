"""Lua scripts of KV accounts: what engines report, what they may spend, what is left when one dies.

An engine reports, of each tenant, all that it has counted since its start: a number that only rises, so that reports
may be lost, repeated and reordered. It spends only what it has been granted: `used + held <= limit` holds at all times,
where `held` is the sum of the grants. Only a report moves the meter, and only the server's own clock is asked.

Numbers are KiB times milliseconds where nothing else is said. Sums that grow for years are pairs: `_s` in KiB·s and
`_r` the rest of it, because scripts count with doubles. Keys, all with the prefix `{wye}:q:`:

    acct:T       hash    used_s, used_r (of the window), life_s, life_r (ever), held, level (KiB now), peak, win_begin,
                         win_end and ends (the next ends, with spaces) in ms, soft (said in this window);
                         of a rolling window sN_s, sN_r for slices of it
    shard:T:E    hash    what engine E counts for tenant T: inc, hi, lo (of the number seen last), grant, level, at,
                         dead
    shards:T     set     engines that have one
    lease        zset    T/E -> deadline in ms; one that is passed is reaped
    limited      set     tenants with a KV quota
    leader:E     string  which process settles for engine E
"""

from __future__ import annotations

from gateway.state.admit_scripts import DAY_AND_HOUR, MAX_USE_FIELDS, USE_DAYS

VERSION = "1"
"""Part of each script's text: servers of different versions never share a script."""

BASE = 10**9
"""Numbers that engines count are sent as two: `hi * BASE + lo`."""

NUM_SLICES = 32
"""Parts of a rolling window, which passes one of them after the other."""

DEAD_S = 24 * 3600
"""Seconds that the last number of an engine that died is kept, against reports that are still on their way."""

_ACCOUNTS = (
    f"local BASE, SLICES, USE_S = {BASE}, {NUM_SLICES}, {USE_DAYS * 24 * 3600}\nlocal MOST_FIELDS = {MAX_USE_FIELDS}\n"
    + """
local function whole(number)
    return string.format('%.0f', number)
end
local function now_in_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local function add(key, name, ms)
    local rest = tonumber(redis.call('HGET', key, name .. '_r') or '0') + ms % 1000
    local seconds = math.floor(ms / 1000)
    if rest >= 1000 then
        rest, seconds = rest - 1000, seconds + 1
    end
    redis.call('HINCRBY', key, name .. '_s', whole(seconds))
    redis.call('HSET', key, name .. '_r', whole(rest))
end
local function note(kind, tenant, ...)
    redis.call('XADD', prefix .. 'ledger', 'MAXLEN', '~', 100000, '*', 'kind', kind, 'tenant', tenant, ...)
end
local function seconds_of(window)
    local seconds = string.match(window, '^rolling:(%d+)$')
    return seconds and tonumber(seconds)
end
local function close(acct, tenant, begin, ends)
    local used = redis.call('HMGET', acct, 'used_s', 'used_r')
    note('window_closed', tenant, 'begin', begin, 'end', ends, 'used_s', used[1] or '0', 'used_r', used[2] or '0')
    redis.call('HSET', acct, 'used_s', '0', 'used_r', '0')
    redis.call('HDEL', acct, 'soft', 'peak')
end
local function roll(acct, tenant, window, now)
    local rolling = seconds_of(window)
    if rolling then
        -- What has left the window is taken off, slice by slice.
        local slice_ms = math.ceil(rolling * 1000 / SLICES)
        local slice = math.floor(now / slice_ms)
        local oldest = tonumber(redis.call('HGET', acct, 'oldest') or whole(slice))
        while oldest <= slice - SLICES do
            if slice - oldest > 2 * SLICES then
                -- Nothing was written for long: all of it has left.
                for at = oldest, oldest + SLICES do
                    redis.call('HDEL', acct, 's' .. whole(at) .. '_s', 's' .. whole(at) .. '_r')
                end
                redis.call('HSET', acct, 'used_s', '0', 'used_r', '0')
                redis.call('HDEL', acct, 'soft')
                oldest = slice - SLICES + 1
                break
            end
            local name = 's' .. whole(oldest)
            local gone = redis.call('HMGET', acct, name .. '_s', name .. '_r')
            if gone[1] then
                add(acct, 'used', -(tonumber(gone[2] or '0')))
                redis.call('HINCRBY', acct, 'used_s', whole(-tonumber(gone[1])))
                redis.call('HDEL', acct, name .. '_s', name .. '_r', 'soft')
            end
            oldest = oldest + 1
        end
        redis.call('HSET', acct, 'oldest', whole(oldest), 'win_begin', whole((slice - SLICES + 1) * slice_ms),
            'win_end', whole((slice + 1) * slice_ms))
        return 's' .. whole(slice)
    end
    local ends = redis.call('HGET', acct, 'ends') or ''
    local win_end = tonumber(redis.call('HGET', acct, 'win_end') or '0')
    while win_end > 0 and now >= win_end do
        local next_end, rest = string.match(ends, '^(%d+) ?(.*)$')
        if not next_end then
            break -- the calendar must be told first: see `note_window`
        end
        close(acct, tenant, redis.call('HGET', acct, 'win_begin') or '0', whole(win_end))
        redis.call('HSET', acct, 'win_begin', whole(win_end), 'win_end', next_end, 'ends', rest)
        win_end, ends = tonumber(next_end), rest
    end
    return nil
end
local function left_of(acct, limit)
    local got = redis.call('HMGET', acct, 'used_s', 'used_r', 'held')
    -- Seconds first: with their thousandths they would be more than a double holds exactly.
    local seconds = math.min(limit - tonumber(got[1] or '0'), 1000000000000)
    return seconds * 1000 - tonumber(got[2] or '0') - tonumber(got[3] or '0') -- below 0 where the limit was lowered
end
local function add_held(acct, ms)
    redis.call('HSET', acct, 'held', whole(math.max(0, tonumber(redis.call('HGET', acct, 'held') or '0') + ms)))
end
local function add_level(acct, kib)
    local level = math.max(0, tonumber(redis.call('HGET', acct, 'level') or '0') + kib)
    redis.call('HSET', acct, 'level', whole(level))
    return level
end
local function drop_grant(acct, shard)
    local got = redis.call('HMGET', shard, 'grant', 'level')
    add_held(acct, -tonumber(got[1] or '0'))
    add_level(acct, -tonumber(got[2] or '0'))
    redis.call('HSET', shard, 'grant', '0', 'level', '0')
end
"""
)

REPORT = (
    f"-- wye report {VERSION}\nlocal prefix = ARGV[1]\n"
    + _ACCOUNTS
    + DAY_AND_HOUR
    + """
-- KEYS  lease
-- ARGV  prefix, engine, its incarnation, milliseconds until the lease is passed, seed, then for each tenant: id, hi and
--       lo of all that was counted, KiB now, what the engine needs
--       It is granted what it needs, if that is there; the seed instead, but no more than half of what is left, if it
--       needs less: so that work can begin, and other engines can too.
-- returns  for each tenant: state, grant (-1 is no limit), hi and lo of what has been seen, end of the window in ms,
--          how many ends of later windows are known (-1: not needed, -2: the tenant has another window now). State is
--          that of the tenant, gone if there is none, or stale for an incarnation that has been replaced: it must spend
--          nothing more.
local engine, inc, lease, seed = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_in_ms()
local day, hour = day_and_hour(math.floor(now / 1000))
local answers = {}
local function answer(...)
    for _, one in ipairs({...}) do
        answers[#answers + 1] = one
    end
end
for at = 6, #ARGV, 5 do
    local tenant, hi, lo = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local level, need = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local of = redis.call('HMGET', prefix .. 'tenant:' .. tenant, 'state', 'kv', 'window', 'soft')
    local acct, shard = prefix .. 'acct:' .. tenant, prefix .. 'shard:' .. tenant .. ':' .. engine
    local got = redis.call('HMGET', shard, 'inc', 'hi', 'lo', 'grant', 'level')
    local known = tonumber(got[1] or '-1')
    if not of[1] then
        answer('gone', '0', whole(hi), whole(lo), '0', '0')
    elseif inc < known then
        answer('stale', '0', got[2], got[3], '0', '0')
    else
        local slice = roll(acct, tenant, of[3] or 'month@UTC', now)
        local seen_hi, seen_lo, grant = tonumber(got[2] or '0'), tonumber(got[3] or '0'), tonumber(got[4] or '0')
        local old_level = tonumber(got[5] or '0')
        if inc > known then
            drop_grant(acct, shard)
            seen_hi, seen_lo, grant, old_level = 0, 0, 0, 0
        end
        local spent = (hi - seen_hi) * BASE + (lo - seen_lo)
        if spent > 0 then
            seen_hi, seen_lo = hi, lo
        else
            spent = 0
        end
        local limit = of[2] and of[1] ~= 'shadow' and tonumber(of[2])
        local from_grant = math.min(grant, spent)
        grant = grant - from_grant
        add_held(acct, -from_grant)
        local beyond = spent - from_grant
        if limit and beyond > 0 then
            -- An engine that was not told in time may spend what it was not granted; no more is charged than is left.
            local left = math.max(0, left_of(acct, limit) - from_grant)
            local forgiven = beyond - math.min(beyond, left)
            if forgiven > 0 then
                note('forgiven', tenant, 'engine', engine, 'kib_ms', whole(forgiven))
                spent, beyond = spent - forgiven, beyond - forgiven
            end
        end
        if spent > 0 then
            add(acct, 'used', spent)
            add(acct, 'life', spent)
            if slice then
                add(acct, slice, spent)
            end
            local use = prefix .. 'use:' .. tenant .. ':' .. day
            add(use, hour .. '|kv', spent)
            redis.call('EXPIRE', use, USE_S)
        end
        if limit then
            local all = math.max(0, grant + left_of(acct, limit))
            local granted = math.min(need, all)
            if granted < seed then
                granted = math.max(granted, math.min(seed, math.ceil(all / 2)))
            end
            add_held(acct, granted - grant)
            grant = granted
            local used_s = tonumber(redis.call('HGET', acct, 'used_s') or '0')
            if of[4] and used_s * 100 >= limit * tonumber(of[4]) and redis.call('HSETNX', acct, 'soft', '1') == 1 then
                note('soft_limit', tenant, 'used_s', whole(used_s), 'limit', of[2])
            end
        else
            add_held(acct, -grant)
            grant = 0
        end
        local total = add_level(acct, level - old_level)
        if total > tonumber(redis.call('HGET', acct, 'peak') or '0') then
            redis.call('HSET', acct, 'peak', whole(total))
        end
        redis.call('HSET', shard, 'inc', whole(inc), 'hi', whole(seen_hi), 'lo', whole(seen_lo), 'grant', whole(grant),
            'level', whole(level), 'at', whole(now))
        redis.call('HDEL', shard, 'dead')
        redis.call('PERSIST', shard)
        redis.call('SADD', prefix .. 'shards:' .. tenant, engine)
        redis.call('ZADD', KEYS[1], whole(now + lease), tenant .. '/' .. engine)
        local _, known_ends = string.gsub(redis.call('HGET', acct, 'ends') or '', '%d+', '')
        if redis.call('HGET', acct, 'window') ~= (of[3] or 'month@UTC') then
            known_ends = -2
        elseif slice then
            known_ends = -1
        end
        answer(of[1], limit and whole(grant) or '-1', whole(seen_hi), whole(seen_lo),
            redis.call('HGET', acct, 'win_end') or '0', whole(known_ends))
    end
end
return answers
"""
)

REAP = (
    f"-- wye reap {VERSION}\nlocal prefix = ARGV[1]\n"
    + _ACCOUNTS
    + f"\nlocal DEAD_S = {DEAD_S}\n"
    + """
-- KEYS  lease
-- ARGV  prefix, most leases to look at
-- returns  T/E of each engine that was heard of no more: its grant is free again; what it used stays as it was reported
local now = now_in_ms()
local passed = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now), 'LIMIT', 0, ARGV[2])
for _, one in ipairs(passed) do
    local tenant, engine = string.match(one, '^([^/]*)/(.*)$')
    local acct, shard = prefix .. 'acct:' .. tenant, prefix .. 'shard:' .. tenant .. ':' .. engine
    if redis.call('EXISTS', shard) == 1 then
        local grant = redis.call('HGET', shard, 'grant') or '0'
        drop_grant(acct, shard)
        redis.call('HSET', shard, 'dead', '1')
        redis.call('EXPIRE', shard, DEAD_S)
        note('reaped', tenant, 'engine', engine, 'grant', grant)
    end
    redis.call('SREM', prefix .. 'shards:' .. tenant, engine)
    redis.call('ZREM', KEYS[1], one)
end
return passed
"""
)

WINDOW = (
    f"-- wye window {VERSION}\nlocal prefix = ARGV[1]\n"
    + _ACCOUNTS
    + """
-- KEYS  acct:T
-- ARGV  prefix, tenant, window, then ends of the calendar's windows in ms, in order; none for a rolling window
-- returns  1. What was used stays; a window of another kind begins now, and the old one is closed.
local tenant, now = ARGV[2], now_in_ms()
local old = redis.call('HMGET', KEYS[1], 'window', 'win_end', 'win_begin')
if old[1] ~= ARGV[3] then
    if old[1] then
        close(KEYS[1], tenant, old[3] or '0', whole(now))
    end
    for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
        if string.match(name, '^s%d+_[sr]$') or name == 'oldest' then
            redis.call('HDEL', KEYS[1], name)
        end
    end
    redis.call('HSET', KEYS[1], 'window', ARGV[3], 'win_begin', whole(now))
    redis.call('HDEL', KEYS[1], 'win_end', 'ends')
    old[2] = false
end
local ends, current = {}, tonumber(old[2] or '0')
for at = 4, #ARGV do
    if tonumber(ARGV[at]) > (current > 0 and current or now) then
        ends[#ends + 1] = ARGV[at]
    end
end
if #ARGV >= 4 then
    if current == 0 then
        redis.call('HSET', KEYS[1], 'win_end', table.remove(ends, 1))
    end
    redis.call('HSET', KEYS[1], 'ends', table.concat(ends, ' '))
end
roll(KEYS[1], tenant, ARGV[3], now)
return 1
"""
)

ADJUST = (
    f"-- wye adjust {VERSION}\nlocal prefix = ARGV[1]\n"
    + _ACCOUNTS
    + """
-- KEYS  acct:T, audit, done:OP
-- ARGV  prefix, tenant, KiB·s to add to what was used in the window (negative takes off), audit line
-- returns  what is used now in KiB·s; never less than 0. The same operation again changes nothing.
local used = tonumber(redis.call('HGET', KEYS[1], 'used_s') or '0')
if redis.call('SET', KEYS[3], '1', 'NX', 'EX', 86400) then
    local after = math.max(0, used + tonumber(ARGV[3]))
    redis.call('HSET', KEYS[1], 'used_s', whole(after))
    note('adjusted', ARGV[2], 'kib_s', whole(after - used))
    redis.call('XADD', KEYS[2], '*', 'd', ARGV[4])
    used = after
end
return whole(used)
"""
)

LEAD = f"""
-- wye lead {VERSION}
-- KEYS  leader:E
-- ARGV  name of the process, milliseconds
-- returns  1 if this process settles, for as long as it says so again in time
local leader = redis.call('GET', KEYS[1])
if not leader or leader == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1
end
return 0
"""
