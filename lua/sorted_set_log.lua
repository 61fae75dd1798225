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

local sorted_set_log
do
  local FIRST_MEMBER = 1000000000000000

  -- As many members as are passed to one command at once, each with its score.
  local CHUNK = 2000

  -- As many members as one check forgets: it takes about a microsecond each. The next one goes on.
  local TRIMMED_AT_ONCE = 2000

  local unpack = table.unpack or unpack

  -- When the member at an index was charged, and its number.
  local function entry_at(key, index)
    local entry = redis.call('ZRANGE', key, text(index), text(index), 'WITHSCORES')
    return tonumber(entry[2]), tonumber(entry[1])
  end

  local function put(key, members)
    local arguments = {}
    for index, member in ipairs(members) do
      arguments[2 * index - 1], arguments[2 * index] = text(now), member
    end
    redis.call('ZADD', key, unpack(arguments))
  end

  local function rewind(key)
    local after = '(' .. text(now)
    local members = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
    while #members > 0 do
      put(key, members)
      members = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
    end
  end

  sorted_set_log = log({
    length = function(key)
      return redis.call('ZCARD', key)
    end,

    entry_at = entry_at,

    expired = function(key, _, time)
      return redis.call('ZCOUNT', key, '-inf', text(time))
    end,

    trim = function(key, expired)
      local trimmed = math.min(expired, TRIMMED_AT_ONCE)
      redis.call('ZREMRANGEBYRANK', key, '0', text(trimmed - 1))
      return trimmed
    end,

    rewind = rewind,

    push = function(key, count, newest)
      local member = newest or FIRST_MEMBER - 1
      while count > 0 do
        local members = {}
        for index = 1, math.min(count, CHUNK) do
          member = member + 1
          members[index] = text(member)
        end
        put(key, members)
        count = count - #members
      end
    end,

    take = function(key, time, units)
      local before = redis.call('ZCOUNT', key, '-inf', '(' .. text(time))
      local charged = redis.call('ZCOUNT', key, text(time), text(time))
      if charged == 0 then
        return false
      end
      local last = before + charged - 1
      local first = math.max(last - units + 1, before)
      redis.call('ZREMRANGEBYRANK', key, text(first), text(last))
      return true
    end,
  })
end
