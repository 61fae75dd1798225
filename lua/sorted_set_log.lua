--[[
sorted_set_log: the exact sliding window as a sorted set. One member for each unit, scored by the time of its charge in whole
microseconds. Decides as the log does: a unit charged at t counts in [t, t + window).

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas of one window
reply   a charge: of each quota used, reset. A refusal: used, wait, reset
calls   ZCARD, ZRANGE twice; if units have expired ZCOUNT; to charge ZADD, PEXPIRE; to remove what has expired
calls   ZREMRANGEBYRANK, or if all has expired UNLINK; after a step back of the clock PEXPIRE, ZCOUNT, ZREMRANGEBYRANK,
calls   ZRANGEBYSCORE, ZADD
server  Redis 6.0

Members are numbers of 16 digits that count up from the newest one. So each is unique, and members of one microsecond sort in
the order of their charges. Expired units are removed by the next charges. A unit that had expired when the newest one was
charged counts no more, wherever the clock steps, also if the newest one was refunded since: there a log may count more.
]]

-- Members of one command, each with its score.
local CHUNK = 2000

-- The open set: its key, the members and those that have expired, the oldest time that counts if it is known, the newest
-- time and member.
local set

-- Returns the time of the member at an index, as text, and the member.
local function member_at(index)
  local entry = call('ZRANGE', set.key, index, index, 'WITHSCORES')
  return entry[2], entry[1]
end

local function put(members)
  local arguments = {}
  for index = 1, #members do
    arguments[2 * index - 1], arguments[2 * index] = now_text, members[index]
  end
  call('ZADD', set.key, spread(arguments))
end

-- Removes all units up to a time, and returns how many.
local function remove_expired(edge)
  local expired = call('ZCOUNT', set.key, '-inf', edge)
  if expired > 0 then
    call('ZREMRANGEBYRANK', set.key, '0', expired - 1)
  end
  return expired
end

-- Moves the units later than now to now, so that none counts for longer than a window.
local function rewind_set(list)
  -- A full server accepts PEXPIRE, and then the rest of the script.
  call('PEXPIRE', set.key, list.ttl)
  set.length = set.length - remove_expired(set.newest - list.window)
  local members
  repeat
    members = call('ZRANGEBYSCORE', set.key, '(' .. now_text, '+inf', 'LIMIT', '0', CHUNK)
    if #members > 0 then
      put(members)
    end
  until #members == 0
  set.newest, set.oldest = now, nil
end

local function room(list, number)
  set = { key = KEYS[number], expired = 0 }
  set.length = redis.pcall('ZCARD', set.key)
  if type(set.length) == 'table' then
    return nil, set.length.err
  end
  if set.length > 0 then
    local newest, member = member_at('-1')
    set.newest, set.member = newest + 0, tonumber(member)
    if not set.member or set.member > 9e15 then
      return nil, WRONG_TYPE
    end
    set.oldest = set.length > 1 and member_at('0') + 0 or set.newest
    set.first = set.oldest
    if set.newest > now then
      rewind_set(list)
    elseif set.oldest <= now - list.window then
      set.expired, set.oldest = call('ZCOUNT', set.key, '-inf', now - list.window), nil
    end
  end
  set.used = set.length - set.expired
  local left, quota = nil, list
  repeat
    left = (not left or quota.limit - set.used < left) and quota.limit - set.used or left
    quota = quota.next
  until not quota
  return list.is_closed and -1 or max(left, 0)
end

-- Returns the microseconds until the unit at `index` expires.
local function leaves_in(list, index)
  local time = index == 0 and set.oldest or member_at(set.expired + index) + 0
  return time + list.window - now
end

local function charge(list, _, units)
  -- More than the limit change neither what is admitted nor when.
  units = min(units, list.limit, 100000)
  if units == 0 then
    return
  end
  local reset, count, member = set.used > 0 and leaves_in(list, 0) or list.window, units, 999999999999999
  if set.used > 0 then
    member = set.member
    if set.expired > 0 then
      local edge = set.newest - list.window
      -- The newest charge has renewed for what it left behind.
      if set.first > edge or member_at(set.expired - 1) + 0 > edge then
        call('PEXPIRE', set.key, list.ttl)
      end
      -- At up to two microseconds each in a large set. The next charge removes more.
      call('ZREMRANGEBYRANK', set.key, '0', min(set.expired, 500) - 1)
    end
  elseif set.length > 0 then
    call('UNLINK', set.key)
  end
  while count > 0 do
    local members = {}
    for index = 1, min(count, CHUNK) do
      member = member + 1
      members[index] = member
    end
    put(members)
    count = count - #members
  end
  if set.used == 0 then
    local renewed = redis.pcall('PEXPIRE', set.key, list.ttl)
    if type(renewed) == 'table' then
      -- The user may not run PEXPIRE: better no units than some that never expire.
      call('UNLINK', set.key)
      error(renewed.err, 0)
    end
  end
  local quota = list
  repeat
    reply[size + 1], reply[size + 2] = set.used + units, reset
    size, quota = size + 2, quota.next
  until not quota
end

local function refuse(list, _, cost)
  local quota, used = list, set.used
  repeat
    local limit, wait, reset = quota.limit, 0, 0
    if used > 0 and limit > 0 then
      reset = leaves_in(list, max(used - limit, 0))
    end
    if max(cost, 1) > limit then
      wait = -1
    elseif cost > 0 and used + cost > limit then
      wait = leaves_in(list, used + cost - limit - 1)
    end
    reply[size + 1], reply[size + 2], reply[size + 3] = used, wait, reset
    size, quota = size + 3, quota.next
  until not quota
end

kinds.sorted_set = function(list)
  list.room, list.charge, list.refuse = room, charge, refuse
end
