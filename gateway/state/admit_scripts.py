"""Lua scripts on the path of a request: who asks, may it, what it has used. All are safe to repeat.

Keys, all with the prefix `{wye}:q:`, whose hash tag keeps them in one place of a cluster:

    key:ID          hash    an API key: hash, old_hash, old_until, tenant, name, scopes, created, expires, disabled,
                            rpm, tpm, conc, tail, account, ver; times in milliseconds; no field is no limit
    tenant:T        hash    a tenant: name, state (active, suspended, shadow, archived), created, archived, rpm,
                            tpm, conc, kv (KiB·s of a window), window, soft, cap (KiB), weight, ver
    acct:T          hash    its KV account, see `quota_scripts`
    gcra:SCOPE      string  theoretical arrival time in microseconds; SCOPE is rt:T, rk:ID (requests), tt:T or
                            tk:ID (tokens)
    slots:SCOPE     zset    requests in flight -> deadline in milliseconds; SCOPE is t:T or k:ID
    done:OP         string  this request has been settled
    seen            hash    id of a key -> second of its last use
    use:T:YYYYMMDD  hash    usage of a day, in UTC: HH|KEY|MODEL|PROGRAM|what -> number
    denials         stream  what was refused lately
"""

from __future__ import annotations

VERSION = "1"
"""Part of each script's text: servers of different versions never share a script."""

USE_DAYS = 400
"""Days that usage is kept."""

MAX_USE_FIELDS = 20_000
"""Of one tenant and day; beyond it names of models and programs, which clients choose, are not told apart any more."""

MINUTE_US = 60_000_000
"""Rates are per minute, and a whole minute's worth may come at once."""

MAX_DEBT_US = 10 * MINUTE_US
"""What a request used beyond its estimate is paid back later; never longer than this, whatever the clock did."""

RATES = """
local function whole(number)
    return string.format('%.0f', number)
end
local function now_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function arrival(scope, now)
    local at = tonumber(redis.call('GET', prefix .. 'gcra:' .. scope) or '0')
    return math.max(now, math.min(at, now + MAX_DEBT))
end
local function arrive(scope, at, now)
    if at > now then
        redis.call('SET', prefix .. 'gcra:' .. scope, whole(math.min(at, now + MAX_DEBT)),
            'PX', whole(math.ceil((at - now) / 1000) + 1000))
    else
        redis.call('DEL', prefix .. 'gcra:' .. scope)
    end
end
""".replace("MAX_DEBT", str(MAX_DEBT_US))

DAY_AND_HOUR = """
local function day_and_hour(seconds)
    -- Days since 1970 to a date, after H. Hinnant, days_from_civil.
    local days = math.floor(seconds / 86400) + 719468
    local era = math.floor(days / 146097)
    local doe = days - era * 146097
    local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
    local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
    local mp = math.floor((5 * doy + 2) / 153)
    local month = mp < 10 and mp + 3 or mp - 9
    local year = yoe + era * 400 + (month <= 2 and 1 or 0)
    local day = doy - math.floor((153 * mp + 2) / 5) + 1
    return string.format('%04d%02d%02d', year, month, day), string.format('%02d', math.floor(seconds % 86400 / 3600))
end
"""

ADMIT = (
    f"-- wye admit {VERSION}\nlocal prefix = ARGV[1]\n"
    + RATES
    + """
-- KEYS  key:ID, or tenant:T for a request of our own
-- ARGV  prefix, id of the key or '', hash of the secret, tenant if there is no key, name of the request, tokens to
--       reserve, scope that is needed or '', mode, milliseconds until the slot is given up
--       mode: work (all limits), own (only the tenant's state and KV), look (the key alone; nothing is taken)
-- returns  verdict, tenant, scopes, source, limit, used, held, retry in ms, end of the window in ms,
--          then limit, left, ms until full of requests and of tokens, then limit, used, held and end of the window of
--          KV; no limit is -1. Verdicts: ok, unknown, disabled, expired, scope, suspended, requests, tokens,
--          concurrency, resident, exceeded, held. The fourth of an admitted request is what a tenant in shadow would
--          have been told.
local id, tenant, name, tokens = ARGV[2], ARGV[4], ARGV[5], tonumber(ARGV[6])
local mode, lease = ARGV[8], tonumber(ARGV[9])
local now = now_us()
local now_ms = math.floor(now / 1000)
local scopes, of_key = '', {}
if id ~= '' then
    of_key = redis.call('HMGET', KEYS[1], 'hash', 'old_hash', 'old_until', 'tenant', 'scopes', 'expires', 'disabled',
        'rpm', 'tpm', 'conc')
    local is_old = of_key[2] and of_key[2] == ARGV[3] and now_ms < tonumber(of_key[3] or '0')
    if not of_key[1] or (of_key[1] ~= ARGV[3] and not is_old) then
        return {'unknown', ''}
    end
    tenant, scopes = of_key[4] or '', of_key[5] or ''
    if of_key[7] == '1' then
        return {'disabled', tenant}
    end
    if of_key[6] and now_ms >= tonumber(of_key[6]) then
        return {'expired', tenant}
    end
    if ARGV[7] ~= '' and scopes ~= '*' and not string.find(' ' .. scopes .. ' ', ' ' .. ARGV[7] .. ' ', 1, true) then
        return {'scope', tenant, scopes}
    end
    redis.call('HSET', prefix .. 'seen', id, whole(math.floor(now_ms / 1000)))
end
if tenant == '' then
    return {'ok', '', scopes}
end
local of = redis.call('HMGET', prefix .. 'tenant:' .. tenant, 'state', 'rpm', 'tpm', 'conc', 'kv', 'cap',
    'window')
if of[1] ~= 'active' and of[1] ~= 'shadow' then
    return {'suspended', tenant}
end
if mode == 'look' then
    return {'ok', tenant, scopes}
end

local slots = {prefix .. 'slots:t:' .. tenant}
if id ~= '' then
    slots[2] = prefix .. 'slots:k:' .. id
end
local is_taken = redis.call('ZSCORE', slots[1], name)
local refusal = nil
local function refuse(verdict, source, limit, used, held, retry_ms, resets_ms)
    -- Where several limits are reached, the one that lasts longest is told.
    if not is_taken and (not refusal or retry_ms > refusal[6]) then
        refusal = {verdict, source, limit, used, held, retry_ms, resets_ms}
    end
end

local arrivals = {}
local function rate(verdict, source, scope, limit, cost)
    local each = MINUTE / limit
    local at = arrival(scope, now)
    local after = at + math.ceil(math.min(cost, limit) * each)
    if after - now > MINUTE then
        local used = math.min(limit, math.ceil((at - now) / each))
        refuse(verdict, source, limit, used, 0, math.ceil((after - now - MINUTE) / 1000), math.ceil(at / 1000))
    elseif not is_taken then
        arrivals[#arrivals + 1] = {scope, after}
    end
    return {limit, each, at, after}
end
local told = {requests = {-1, -1, -1}, tokens = {-1, -1, -1}}
local rates = {}
if mode == 'work' then
    for _, one in ipairs({
        {'requests', 'tenant', 'rt:' .. tenant, of[2], 1}, {'requests', 'key', 'rk:' .. id, of_key[8], 1},
        {'tokens', 'tenant', 'tt:' .. tenant, of[3], tokens}, {'tokens', 'key', 'tk:' .. id, of_key[9], tokens}}) do
        if one[4] then
            rates[#rates + 1] = {one[1], rate(one[1], one[2], one[3], tonumber(one[4]), one[5])}
        end
    end
    for place, limit in ipairs({of[4] or '', of_key[10] or ''}) do
        if slots[place] then
            redis.call('ZREMRANGEBYSCORE', slots[place], '-inf', whole(now_ms))
            local running = redis.call('ZCARD', slots[place])
            if limit ~= '' and running >= tonumber(limit) then
                local source = place == 1 and 'tenant' or 'key'
                refuse('concurrency', source, tonumber(limit), running, 0, 1000, now_ms + 1000)
            end
        end
    end
end

local kv = {-1, -1, -1, -1}
if of[5] or of[6] then
    local acct = redis.call('HMGET', prefix .. 'acct:' .. tenant, 'used_s', 'held', 'win_end', 'level', 'used_r')
    local ends, level = tonumber(acct[3] or '0'), tonumber(acct[4] or '0')
    local used = tonumber(acct[1] or '0') + tonumber(acct[5] or '0') / 1000
    local held = tonumber(acct[2] or '0') / 1000
    if ends > 0 and now_ms >= ends and not string.find(of[7] or '', '^rolling') then
        -- The window is over, and the next report begins the next one.
        used, ends = 0, 0
    end
    if of[5] then
        local limit = tonumber(of[5])
        kv = {limit, used, held, ends}
        if used >= limit then
            refuse('exceeded', 'tenant', limit, used, held, math.max(1000, ends - now_ms), ends)
        elseif used + held >= limit and level > 0 then
            refuse('held', 'tenant', limit, used, held, 2000, ends)
        end
    end
    if of[6] and level >= tonumber(of[6]) then
        refuse('resident', 'tenant', tonumber(of[6]), level, 0, 2000, now_ms + 2000)
    end
end

local shadow = ''
if refusal then
    local is_shadow = of[1] == 'shadow'
    redis.call('XADD', prefix .. 'denials', 'MAXLEN', '~', 1000, '*', 'tenant', tenant, 'key', id,
        'verdict', refusal[1], 'source', refusal[2], 'limit', whole(refusal[3]), 'used', whole(refusal[4]),
        'shadow', is_shadow and '1' or '')
    if is_shadow then
        shadow = refusal[1]
    end
end
local is_admitted = not refusal or shadow ~= ''
if is_admitted and not is_taken then
    if not refusal then
        for _, one in ipairs(arrivals) do
            arrive(one[1], one[2], now)
        end
    end
    for _, slot in ipairs(slots) do
        redis.call('ZADD', slot, whole(now_ms + lease), name)
    end
end
for _, one in ipairs(rates) do
    local limit, each, at, after = unpack(one[2])
    if is_admitted and not refusal and not is_taken then
        at = after
    end
    local left = math.max(0, math.floor((MINUTE - (at - now)) / each))
    if told[one[1]][1] < 0 or left < told[one[1]][2] then
        told[one[1]] = {limit, left, math.ceil((at - now) / 1000)}
    end
end
local head = refusal or {'ok', '', -1, -1, -1, 0, 0}
local answer = {is_admitted and 'ok' or head[1], tenant, scopes, is_admitted and shadow or head[2]}
for _, part in ipairs({{head[3], head[4], head[5], head[6], head[7]}, told.requests, told.tokens, kv}) do
    for _, number in ipairs(part) do
        answer[#answer + 1] = whole(number)
    end
end
return answer
""".replace("MINUTE", str(MINUTE_US))
)

SETTLE = (
    f"-- wye settle {VERSION}\nlocal prefix = ARGV[1]\n"
    + RATES
    + f"\nlocal USE_S, MOST_FIELDS = {USE_DAYS * 24 * 3600}, {MAX_USE_FIELDS}\n"
    + DAY_AND_HOUR
    + """
-- KEYS  done:OP
-- ARGV  prefix, name of the request, tenant, id of the key, tokens reserved, tokens used, MODEL|PROGRAM,
--       what, number, ...
-- returns  1, or 0 if this has been settled before
local name, tenant, id = ARGV[2], ARGV[3], ARGV[4]
redis.call('ZREM', prefix .. 'slots:t:' .. tenant, name)
if id ~= '' then
    redis.call('ZREM', prefix .. 'slots:k:' .. id, name)
end
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', 600) then
    return 0
end
local now = now_us()
local more = tonumber(ARGV[6]) - tonumber(ARGV[5])
if more ~= 0 then
    local limits = {['tt:' .. tenant] = redis.call('HGET', prefix .. 'tenant:' .. tenant, 'tpm')}
    if id ~= '' then
        limits['tk:' .. id] = redis.call('HGET', prefix .. 'key:' .. id, 'tpm')
    end
    for scope, limit in pairs(limits) do
        if limit then
            local each = MINUTE / tonumber(limit)
            -- What was reserved beyond the limit was not taken.
            local taken = math.min(tonumber(ARGV[5]), tonumber(limit))
            arrive(scope, arrival(scope, now) + math.ceil((tonumber(ARGV[6]) - taken) * each), now)
        end
    end
end
local day, hour = day_and_hour(math.floor(now / 1000000))
local use = prefix .. 'use:' .. tenant .. ':' .. day
local labels = ARGV[7]
if redis.call('HLEN', use) > MOST_FIELDS then
    labels = 'other|other'
end
for at = 8, #ARGV, 2 do
    redis.call('HINCRBY', use, hour .. '|' .. id .. '|' .. labels .. '|' .. ARGV[at], ARGV[at + 1])
end
redis.call('EXPIRE', use, USE_S)
return 1
""".replace("MINUTE", str(MINUTE_US))
)

RENEW = f"""
-- wye renew {VERSION}
-- KEYS  tenants
-- ARGV  prefix, milliseconds until slots are given up, then tenant, id of the key or '', name of a request, ...
-- returns  how many are still known
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local deadline = string.format('%.0f', now_ms + tonumber(ARGV[2]))
local known = 0
for at = 3, #ARGV, 3 do
    local slot = ARGV[1] .. 'slots:t:' .. ARGV[at]
    if redis.call('ZSCORE', slot, ARGV[at + 2]) then
        redis.call('ZADD', slot, 'XX', deadline, ARGV[at + 2])
        known = known + 1
    end
    if ARGV[at + 1] ~= '' then
        redis.call('ZADD', ARGV[1] .. 'slots:k:' .. ARGV[at + 1], 'XX', deadline, ARGV[at + 2])
    end
end
return known
"""
