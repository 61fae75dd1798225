--[[
sliding_log: the exact sliding window. A list of the times at which units were charged, in whole
microseconds, oldest first, one entry a unit. What decides where one quota stands alone is here; for
all else are the steps of log.

KEYS    the list
ARGV    none; is given a quota
reply   steps, grant
calls   LLEN, LINDEX twice; to charge one unit RPUSH
server  Redis 5.0
]]

local call = redis.call

local function steps()
  return need('log')(need('list'))
end

-- Charges as many of so many checks of a cost as are admitted, and tells how many. Appends what the
-- quota says after each, and of the first that is refused.
local function grant(quota, first, cost, count, reply, size)
  local key, window, limit = KEYS[first], quota.window, quota.limit
  local used, oldest = call('LLEN', key), now
  if used > 0 then
    local newest = call('LINDEX', key, '-1')
    oldest = (used > 1 and call('LINDEX', key, '0') or newest) + 0
    -- Mostly there is nothing to rewind and nothing to trim. Texts of 16 digits, from 2001 to 2286,
    -- compare as their numbers do.
    if newest > present or oldest + window <= now then
      quota.key, quota.settle = key, quota.settle or need('settle')(need('list'))
      used, oldest = quota.settle(quota, cost, used, oldest, newest)
      oldest = oldest or now
    end
  end
  local granted, units = count, cost * count
  if used + units > limit then
    granted = used + cost <= limit and math.floor((limit - used) / cost) or 0
    units = granted * cost
  end
  if units == 1 then
    call('RPUSH', key, present)
  elseif units > 1 then
    need('push')(key, units)
  end
  if used == 0 and units > 0 then
    quota.key, quota.begin = key, quota.begin or need('begin')
    quota.begin(quota)
  end
  local reset = oldest < now and oldest + window - now or window
  for after = used + cost, used + units, cost do
    reply[size + 1], reply[size + 2] = after, reset
    size = size + 2
  end
  if granted == count then
    return granted, size
  end
  local wait, held = reset, used
  used = used + units
  if cost > limit or used + cost > limit + 1 then
    -- More has to leave than the oldest unit.
    quota.made, quota.key = quota.made or steps(), key
    quota.used, quota.held, quota.oldest, quota.skipped = used, held, oldest, 0
    quota.made.judge(quota, quota, cost)
    used, wait, reset = quota.used, quota.wait, quota.reset
  end
  reply[size + 1], reply[size + 2], reply[size + 3] = used, wait, reset
  return granted, size + 3
end

return steps, grant
