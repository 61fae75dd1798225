--[[
sorted_set_log: the exact sliding window as the literature has it. A sorted set of one member a unit,
scored by the time at which it was charged, in whole microseconds. Decides as sliding_log does.

KEYS    none; is given one by decide
ARGV    none; is given a quota by decide
reply   none; answers decide
calls   ZCARD, ZRANGE twice; then for a trim ZCOUNT, ZREMRANGEBYRANK; to look ZCOUNT; to
calls   charge ZADD; after a step back of the clock ZRANGEBYSCORE, ZADD; to refund ZCOUNT twice,
calls   ZREMRANGEBYRANK
server  Redis 5.0

Members are numbers that go on from the newest one, all of 16 digits: so each is unique, and those of
one microsecond are in the order in which they were charged.
]]

local function sorted_set_log()
  local FIRST_MEMBER = 1000000000000000

  -- As many members as are passed to one command at once, each with its score.
  local CHUNK = 2000

  -- As many members as one check forgets: it takes about a microsecond each. The next one goes on.
  local TRIMMED_AT_ONCE = 2000

  local unpack = table.unpack or unpack
  local call, min = redis.call, math.min

  -- When the member at an index, as text, was charged.
  local function entry_at(key, index)
    local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
    return entry[2] + 0
  end

  local function put(key, members)
    local time, arguments = text(now), {}
    for index = 1, #members do
      arguments[2 * index - 1], arguments[2 * index] = time, members[index]
    end
    call('ZADD', key, unpack(arguments))
  end

  local function rewind(key)
    local after = '(' .. text(now)
    local members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
    while #members > 0 do
      put(key, members)
      members = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
    end
  end

  return log({
    survey = function(key)
      local length = call('ZCARD', key)
      if length == 0 then
        return 0
      end
      local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
      local oldest = length > 1 and entry_at(key, '0') or newest[2] + 0
      return length, oldest, newest[2], newest[1]
    end,

    entry_at = entry_at,

    expired = function(key, _, time)
      return call('ZCOUNT', key, '-inf', text(time))
    end,

    trim = function(key, expired)
      local trimmed = min(expired, TRIMMED_AT_ONCE)
      call('ZREMRANGEBYRANK', key, '0', text(trimmed - 1))
      return trimmed
    end,

    rewind = rewind,

    push = function(key, count, newest)
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
    end,

    take = function(key, time, units)
      local before = call('ZCOUNT', key, '-inf', '(' .. text(time))
      local charged = call('ZCOUNT', key, text(time), text(time))
      if charged == 0 then
        return false
      end
      local last = before + charged - 1
      local first = math.max(last - units + 1, before)
      call('ZREMRANGEBYRANK', key, text(first), text(last))
      return true
    end,
  })
end
