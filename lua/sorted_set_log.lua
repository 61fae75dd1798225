--[[
sorted_set_log: the exact sliding window as a sorted set. One member for each unit, scored by the time of
its charge in whole microseconds. Decides as sliding_log does.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the quota
reply   make_ops
calls   ZCARD, ZRANGE twice; then for a trim ZCOUNT, ZREMRANGEBYRANK; to look ZCOUNT; to
calls   charge ZADD; to undo that ZREMRANGEBYRANK; after a step back of the clock ZRANGEBYSCORE, ZADD; to
calls   refund ZCOUNT twice, ZREMRANGEBYRANK
server  Redis 5.0

Members are numbers of 16 digits that count up from the newest one. So each is unique, and those of one
microsecond sort in the order of their charges.
]]

local FIRST_MEMBER = 1000000000000000

-- Members of one command, each with its score.
local CHUNK = 2000

-- Members that one check removes, at about a microsecond each. The next check removes more.
local MAX_TRIMMED = 2000

local call, min = redis.call, math.min
local format_integer = require('format_integer')

-- Returns the time of the member at an index, as text, and the member.
local function member_at(key, index)
  local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
  return entry[2], entry[1]
end

local function entry_at(key, index)
  return member_at(key, format_integer(index)) + 0
end

local function bounds(key)
  local length = call('ZCARD', key)
  if length == 0 then
    return 0
  end
  local newest, member = member_at(key, '-1')
  local oldest = length > 1 and member_at(key, '0') or newest
  return length, oldest + 0, newest, member
end

local function put(key, members)
  local arguments = {}
  for index = 1, #members do
    arguments[2 * index - 1], arguments[2 * index] = now_text, members[index]
  end
  call('ZADD', key, (table.unpack or unpack)(arguments))
end

local function rewind(key)
  local after = '(' .. now_text
  local members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', format_integer(CHUNK))
  while #members > 0 do
    put(key, members)
    members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', format_integer(CHUNK))
  end
end

local function push(key, count, newest)
  local member = newest and newest + 0 or FIRST_MEMBER - 1
  while count > 0 do
    local members = {}
    for index = 1, min(count, CHUNK) do
      member = member + 1
      members[index] = format_integer(member)
    end
    put(key, members)
    count = count - #members
  end
end

local function expired(key, _, time)
  return call('ZCOUNT', key, '-inf', format_integer(time))
end

local function trim(key, count)
  local trimmed = min(count, MAX_TRIMMED)
  call('ZREMRANGEBYRANK', key, '0', format_integer(trimmed - 1))
  return trimmed
end

local function take(key, time, units)
  local before = call('ZCOUNT', key, '-inf', '(' .. format_integer(time))
  local charged = call('ZCOUNT', key, format_integer(time), format_integer(time))
  if charged == 0 then
    return false
  end
  local last = before + charged - 1
  local first = math.max(last - units + 1, before)
  call('ZREMRANGEBYRANK', key, format_integer(first), format_integer(last))
  return true
end

local function drop(key, expired, units)
  local first = math.max(expired - MAX_TRIMMED, 0)
  call('ZREMRANGEBYRANK', key, format_integer(first), format_integer(expired + units - 1))
end

local function pop(key, count)
  call('ZREMRANGEBYRANK', key, format_integer(-count), '-1')
end

local backend = {
  bounds = bounds,
  entry_at = entry_at,
  expired = expired,
  trim = trim,
  rewind = rewind,
  push = push,
  take = take,
  drop = drop,
  pop = pop,
}

return function()
  return require('log')(backend)
end
