--[[
sorted_set_log: the exact sliding window as the literature has it. A sorted set of one member a unit,
scored by the time at which it was charged, in whole microseconds. Decides as sliding_log does.

KEYS    none; is given one
ARGV    none; is given a quota
reply   steps
calls   ZCARD, ZRANGE twice; then for a trim ZCOUNT, ZREMRANGEBYRANK; to look ZCOUNT; to
calls   charge ZADD; to undo that ZREMRANGEBYRANK; after a step back of the clock ZRANGEBYSCORE, ZADD; to
calls   refund ZCOUNT twice, ZREMRANGEBYRANK
server  Redis 5.0

Members are numbers that go on from the newest one, all of 16 digits: so each is unique, and those of
one microsecond are in the order in which they were charged.
]]

local FIRST_MEMBER = 1000000000000000

-- As many members as are passed to one command at once, each with its score.
local CHUNK = 2000

-- As many members as one check forgets: it takes about a microsecond each. The next one goes on.
local TRIMMED_AT_ONCE = 2000

local call, min = redis.call, math.min
local text = need('text')

-- When the member at an index was charged, as text, and the member.
local function member_at(key, index)
  local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
  return entry[2], entry[1]
end

local function entry_at(key, index)
  return member_at(key, text(index)) + 0
end

local function survey(key)
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
    arguments[2 * index - 1], arguments[2 * index] = present, members[index]
  end
  call('ZADD', key, (table.unpack or unpack)(arguments))
end

local function rewind(key)
  local after = '(' .. present
  local members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
  while #members > 0 do
    put(key, members)
    members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
  end
end

local function push(key, count, newest)
  local member = newest and newest + 0 or FIRST_MEMBER - 1
  while count > 0 do
    local members = {}
    for index = 1, min(count, CHUNK) do
      member = member + 1
      members[index] = text(member)
    end
    put(key, members)
    count = count - #members
  end
end

local function expired(key, _, time)
  return call('ZCOUNT', key, '-inf', text(time))
end

local function trim(key, count)
  local trimmed = min(count, TRIMMED_AT_ONCE)
  call('ZREMRANGEBYRANK', key, '0', text(trimmed - 1))
  return trimmed
end

local function take(key, time, units)
  local before = call('ZCOUNT', key, '-inf', '(' .. text(time))
  local charged = call('ZCOUNT', key, text(time), text(time))
  if charged == 0 then
    return false
  end
  local last = before + charged - 1
  local first = math.max(last - units + 1, before)
  call('ZREMRANGEBYRANK', key, text(first), text(last))
  return true
end

local function drop(key, expired, units)
  local first = math.max(expired - TRIMMED_AT_ONCE, 0)
  call('ZREMRANGEBYRANK', key, text(first), text(expired + units - 1))
end

local function pop(key, count)
  call('ZREMRANGEBYRANK', key, text(-count), '-1')
end

local kind = {
  survey = survey,
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
  return need('log')(kind)
end
