--[[
sorted_set_log: the exact sliding window as a sorted set. One member for each unit, scored by the time of its
charge in whole microseconds. Decides as sliding_log does: a unit charged at t counts in [t, t + window).

KEYS    none; the caller passes the key
ARGV    none; the caller passes the state and its quotas
reply   make_ops
calls   ZCARD, ZRANGE twice; if units have expired ZCOUNT; to charge ZADD; to remove what has expired PEXPIRE,
calls   ZREMRANGEBYRANK, or if all has expired UNLINK; to undo a charge ZREMRANGEBYRANK; after a step back of the
calls   clock PEXPIRE, ZCOUNT, ZREMRANGEBYRANK, ZRANGEBYSCORE, ZADD; to refund ZCOUNT twice, ZRANGE, ZREMRANGEBYRANK,
calls   EXISTS, PEXPIRE, and of the newest charge ZCOUNT; to credit ZREMRANGEBYRANK, PEXPIRE, or if nothing is
calls   left UNLINK
server  Redis 5.0

Members are numbers of 16 digits that count up from the newest one. So each is unique, and those of one
microsecond sort in the order of their charges. Expired units are removed by the next charges. A unit that had expired
when the newest one was charged counts no more, wherever the clock steps.
]]

local FIRST_MEMBER = 1000000000000000

-- Members of one command, each with its score.
local CHUNK = 2000

-- Members that one charge removes, at about a microsecond each. The next charge removes more.
local MAX_TRIMMED = 1000

local call, min, max = redis.call, math.min, math.max
local format_integer = require('format_integer')

-- Returns the time of the member at an index, as text, and the member.
local function member_at(key, index)
  local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
  return entry[2], entry[1]
end

local function put(key, members)
  local arguments = {}
  for index = 1, #members do
    arguments[2 * index - 1], arguments[2 * index] = now_text, members[index]
  end
  call('ZADD', key, (table.unpack or unpack)(arguments))
end

-- Moves the units later than now to now, so that none counts for longer than a window.
local function rewind(key)
  local after = '(' .. now_text
  local members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', format_integer(CHUNK))
  while #members > 0 do
    put(key, members)
    members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', format_integer(CHUNK))
  end
end

local function renew(log)
  call('PEXPIRE', log.extra_key, log.ttl)
end

-- Removes all units up to a time, and returns how many. They had expired at the newest charge, and would count again
-- once that is gone or is moved to an earlier time.
local function remove_expired(key, edge)
  local expired = call('ZCOUNT', key, '-inf', format_integer(edge))
  if expired > 0 then
    call('ZREMRANGEBYRANK', key, '0', format_integer(expired - 1))
  end
  return expired
end

-- Reads which units count. A cost rewinds what is later than now.
local function read(log, cost)
  local key = log.extra_key
  log.length, log.expired, log.oldest, log.member = call('ZCARD', key), 0, nil, nil
  if log.length > 0 then
    local newest, member = member_at(key, '-1')
    local oldest = (log.length > 1 and member_at(key, '0') or newest) + 0
    log.oldest, log.member, log.first, log.newest = oldest, member, oldest, newest + 0
    -- What had expired at the newest charge counts no more, wherever the clock steps.
    local edge = max(now, log.newest) - log.window
    if cost > 0 and newest > now_text then
      -- A full server accepts PEXPIRE, and then the rest of the script.
      renew(log)
      if oldest <= edge then
        log.length, log.oldest = log.length - remove_expired(key, edge), nil
      end
      rewind(key)
    elseif log.newest <= edge then
      log.expired = log.length
    elseif oldest <= edge then
      log.expired, log.oldest = call('ZCOUNT', key, '-inf', format_integer(edge)), nil
    end
  end
  log.stored = log.length - log.expired
  log.used = log.stored
end

-- Returns the microseconds until the unit at `index` expires. Units that are not written yet are charged now.
local function expires_in(log, index)
  local time = now
  if index == 0 and log.stored > 0 then
    log.oldest = log.oldest or member_at(log.extra_key, format_integer(log.expired)) + 0
    time = log.oldest
  elseif index < log.stored then
    time = member_at(log.extra_key, format_integer(log.expired + index)) + 0
  end
  return time < now and time + log.window - now or log.window
end

local function charge(log, cost)
  log.used = log.used + cost
end

-- Removes what has expired, and charges units now.
local function write(log)
  local key, count, member = log.extra_key, log.used - log.stored, FIRST_MEMBER - 1
  if log.stored > 0 then
    member = log.member + 0
    if log.expired > 0 then
      local edge = log.newest - log.window
      -- The newest charge has renewed for what it left behind.
      if log.first > edge or member_at(key, format_integer(log.expired - 1)) + 0 > edge then
        renew(log)
      end
      call('ZREMRANGEBYRANK', key, '0', format_integer(min(log.expired, MAX_TRIMMED) - 1))
    end
  elseif log.length > 0 then
    call('UNLINK', key)
  end
  while count > 0 do
    local members = {}
    for index = 1, min(count, CHUNK) do
      member = member + 1
      members[index] = format_integer(member)
    end
    put(key, members)
    count = count - #members
  end
  if log.stored == 0 then
    require('set_ttl')(key, log.ttl)
  end
end

-- Removes what `write` charged. A log that was empty before is gone then.
local function undo(log)
  call('ZREMRANGEBYRANK', log.extra_key, format_integer(log.stored - log.used), '-1')
end

-- The units of a charge are those of its time: units of one microsecond are interchangeable.
local function refund(log, charged, units)
  local key, time = log.extra_key, format_integer(charged.time)
  if charged.time + log.window <= now then
    return
  end
  local before, found = call('ZCOUNT', key, '-inf', '(' .. time), call('ZCOUNT', key, time, time)
  if found > 0 then
    local last = before + found - 1
    local first = max(last - units + 1, before)
    local is_newest = member_at(key, '-1') == time
    call('ZREMRANGEBYRANK', key, format_integer(first), format_integer(last))
    if is_newest then
      remove_expired(key, charged.time - log.window)
    end
    if call('EXISTS', key) == 1 then
      renew(log)
    end
  end
end

local function clear(log)
  call('UNLINK', log.extra_key)
end

-- Removes the oldest units that count, which would expire first, and what has expired before them.
local function credit(log, units)
  if units < log.used then
    call('ZREMRANGEBYRANK', log.extra_key, '0', format_integer(log.expired + units - 1))
    renew(log)
  elseif log.used > 0 then
    clear(log)
  end
end

return function()
  return {
    read = read,
    judge = require('judge_log')(expires_in),
    charge = charge,
    write = write,
    undo = undo,
    refund = refund,
    clear = clear,
    credit = credit,
  }
end
