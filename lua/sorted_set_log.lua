--[[
sorted_set_log: the exact sliding window as the literature has it. A sorted set of one member a unit,
scored by the time at which it was charged, in whole microseconds. Decides as sliding_log does.

KEYS    none; is given one by decide
ARGV    none; is given a quota by decide
reply   none; answers decide
calls   ZCARD, ZRANGE twice; then for a trim ZCOUNT, ZREMRANGEBYRANK or UNLINK; to look ZCOUNT; to
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

  -- The member at an index, and when it was charged.
  local function entry_at(key, index)
    local entry = redis.call('ZRANGE', key, text(index), text(index), 'WITHSCORES')
    return tonumber(entry[1]), tonumber(entry[2])
  end

  local function put(key, members)
    local arguments = {}
    for index, member in ipairs(members) do
      arguments[2 * index - 1], arguments[2 * index] = text(now), member
    end
    redis.call('ZADD', key, unpack(arguments))
  end

  -- A clock that stepped back leaves units after now: they are charged now.
  local function rewind(key, window)
    local after = '(' .. text(now)
    local members = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
    while #members > 0 do
      put(key, members)
      members = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', text(CHUNK))
    end
    renew(key, window)
  end

  -- How many members count, how many expired ones are still before them, the newest member, and when
  -- the oldest that counts was charged, where that is known. A cost of 0 only looks.
  local function settle(key, window, cost)
    local length = redis.call('ZCARD', key)
    if length == 0 then
      return 0, 0
    end
    local member, newest = entry_at(key, -1)
    if newest + window <= now then
      if cost > 0 then
        redis.call('UNLINK', key)
      end
      return 0, 0
    end
    if newest > now and cost > 0 then
      rewind(key, window)
    end
    local _, oldest = entry_at(key, 0)
    if oldest + window > now then
      return length, 0, member, oldest
    end
    local expired = redis.call('ZCOUNT', key, '-inf', text(now - window))
    if cost == 0 then
      return length - expired, expired, member
    end
    local trimmed = math.min(expired, TRIMMED_AT_ONCE)
    redis.call('ZREMRANGEBYRANK', key, '0', text(trimmed - 1))
    renew(key, window)
    return length - expired, expired - trimmed, member
  end

  sorted_set_log = log({
    settle = settle,

    time_at = function(key, index)
      local _, time = entry_at(key, index)
      return time
    end,

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
