--[[
log: what the algorithms have in common that remember when each unit was charged. A unit charged at t
counts in [t, t + window). Twin of src/algorithm/sliding_log.rs.

KEYS    none; is given one by decide
ARGV    none; is given a count and its quotas by decide
reply   none; answers decide
calls   those of the kind; when a log begins, or is trimmed, rewound or given units back, PEXPIRE; where
calls   that fails, and when all has expired, UNLINK; after a refund EXISTS
server  Redis 5.0

A kind of log is a table of functions: `length` tells how many units it holds; `entry_at` when the one
at an index was charged, and what `push` is to be told of the newest; `expired` how many were charged
up to a time, which is less than all and more than none; `trim` forgets up to so many of the oldest,
and tells how many; `rewind` has those after now be charged now; `push` charges units now; `take`
takes back up to so many that were charged at a time, and tells whether there were any.
]]

-- Has a log live for as long as it can count.
local function renew(key, window)
  redis.call('PEXPIRE', key, time_to_live(window))
end

local function log(kind)
  local algorithm = {}

  -- How many units count, how many expired ones are still before them, what `push` is to be told, and
  -- when the oldest that counts was charged, where that is known. A cost of 0 only looks.
  local function settle(key, window, cost)
    local length = kind.length(key)
    if length == 0 then
      return 0, 0
    end
    local newest, member = kind.entry_at(key, -1)
    if newest + window <= now then
      -- All have expired: the log is gone.
      if cost > 0 then
        redis.call('UNLINK', key)
      end
      return 0, 0
    end
    if newest > now and cost > 0 then
      -- A clock that stepped back: so none counts for longer than a window. Once for each step.
      kind.rewind(key, length)
      renew(key, window)
    end
    local oldest = kind.entry_at(key, 0)
    if oldest + window > now then
      return length, 0, member, oldest
    end
    local expired = kind.expired(key, length, now - window)
    if cost == 0 then
      return length - expired, expired, member
    end
    local trimmed = kind.trim(key, expired)
    renew(key, window)
    return length - expired, expired - trimmed, member
  end

  function algorithm.read(count, cost)
    count.used, count.skipped, count.newest, count.oldest = settle(count.key, count.window, cost)
    count.held = count.used
  end

  -- When the unit at `index` returns, in microseconds from now. Units that are not stored yet are
  -- charged now.
  local function returns_in(count, index)
    local time = now
    if index == 0 and count.oldest then
      time = count.oldest
    elseif index < count.held then
      time = kind.entry_at(count.key, count.skipped + index)
    end
    return math.min(time, now) + count.window - now
  end

  function algorithm.judge(count, quota, cost)
    local used, limit = count.used, quota.limit
    -- Where the limit was lowered below what is used, some leave before one more fits.
    local surplus = math.max(used - limit, 0)
    local reset = surplus < used and returns_in(count, surplus) or 0
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      -- That many units must leave, and they leave in order.
      local last = used + cost - limit - 1
      wait = last == surplus and reset or returns_in(count, last)
    end
    quota.used, quota.wait, quota.reset = used, wait, reset
  end

  function algorithm.charge(count, cost)
    count.used = count.used + cost
  end

  function algorithm.write(count)
    local charged = count.used - count.held
    if charged == 0 then
      return
    end
    kind.push(count.key, charged, count.newest)
    if count.held == 0 then
      local renewed, problem = pcall(renew, count.key, count.window)
      if not renewed then
        -- A user without the right to PEXPIRE: rather no log than one that stays for ever.
        redis.call('UNLINK', count.key)
        error(problem, 0)
      end
    end
  end

  -- The units of a charge are those of its time: units of one microsecond are all alike.
  function algorithm.refund(quota, charge, units)
    if charge.time + quota.window <= now then
      return
    end
    if kind.take(quota.key, charge.time, units) and redis.call('EXISTS', quota.key) == 1 then
      renew(quota.key, quota.window)
    end
  end

  return algorithm
end
