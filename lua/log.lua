--[[
log: what the algorithms have in common that remember when each unit was charged. A unit charged at t
counts in [t, t + window). Twin of src/algorithm/sliding_log.rs.

KEYS    none; is given one by decide
ARGV    none; is given a quota by decide
reply   none; answers decide
calls   those of the log; when it begins, or is trimmed, rewound or given units back, PEXPIRE; where
calls   that fails UNLINK; after a refund EXISTS
server  Redis 5.0

A kind of log is a table of functions: `settle` forgets what no longer counts, and tells how many
units do, how many expired ones are still before them, what `push` is to be told, and when the oldest
unit was charged, where that is known; `time_at` tells when the unit at an index was charged, from 0
at the oldest; `push` charges units now; `take` takes back up to so many that were charged at a time,
and tells whether there were any.
]]

-- Has a log live for as long as it can count.
local function renew(key, window)
  redis.call('PEXPIRE', key, time_to_live(window))
end

local function log(kind)
  local algorithm = {}

  function algorithm.ask(quota, cost)
    local key, limit, window = quota.key, quota.limit, quota.window
    local used, skipped, newest, oldest = kind.settle(key, window, cost)

    -- When the unit at `index` has left, in microseconds from now.
    local function returns_in(index)
      local time = index == 0 and oldest or kind.time_at(key, skipped + index)
      return math.min(time, now) + window - now
    end

    -- Where the limit was lowered below what is used, some leave before one more fits.
    local surplus = math.max(used - limit, 0)
    local reset = surplus < used and returns_in(surplus) or 0
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      -- That many units must leave, and they leave in order.
      local last = used + cost - limit - 1
      wait = last == surplus and reset or returns_in(last)
    end
    return { used = used, wait = wait, reset = reset, newest = newest }
  end

  function algorithm.charge(quota, cost, asked)
    kind.push(quota.key, cost, asked.newest)
    if asked.used == 0 then
      local renewed, problem = pcall(renew, quota.key, quota.window)
      if not renewed then
        -- A user without the right to PEXPIRE: rather no log than one that stays for ever.
        redis.call('UNLINK', quota.key)
        error(problem, 0)
      end
    end
  end

  -- What a quota says after its count was charged, for which it need not be asked again: what was
  -- charged now is the last to return.
  function algorithm.look(quota, _, asked, cost)
    local reset = asked.used == 0 and quota.window or asked.reset
    return { used = asked.used + cost, wait = 0, reset = reset }
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
