--[[
sliding_log: the exact sliding window. A list with one entry for each unit: the time of its charge in
whole microseconds, oldest first. This file decides for a single quota; list and log do the rest.

KEYS    the list
ARGV    none; the caller passes the quota
reply   make_ops, fast_path
calls   LLEN, LINDEX twice; to charge one unit RPUSH
server  Redis 5.0
]]

local call = redis.call

local function make_ops()
  return require('log')(require('list'))
end

-- Charges as many checks of a cost as are admitted, and returns their number. Appends the reply to each
-- of them, and to the first that is refused.
local function fast_path(quota, first_key, cost, count, reply, size)
  local key, window, limit = KEYS[first_key], quota.window, quota.limit
  local used, oldest = call('LLEN', key), now
  if used > 0 then
    local newest = call('LINDEX', key, '-1')
    oldest = (used > 1 and call('LINDEX', key, '0') or newest) + 0
    -- Usually there is nothing to rewind or to trim. Texts of 16 digits, from 2001 to 2286, compare as
    -- their numbers do.
    if newest > now_text or oldest + window <= now then
      quota.key, quota.advance = key, quota.advance or require('advance')(require('list'))
      used, oldest = quota.advance(quota, cost, used, oldest, newest)
      oldest = oldest or now
    end
  end
  local admitted, units = count, cost * count
  if used + units > limit then
    admitted = used + cost <= limit and math.floor((limit - used) / cost) or 0
    units = admitted * cost
  end
  if units == 1 then
    call('RPUSH', key, now_text)
  elseif units > 1 then
    require('push')(key, units)
  end
  if used == 0 and units > 0 then
    quota.key, quota.set_ttl = key, quota.set_ttl or require('set_ttl')
    quota.set_ttl(quota)
  end
  local reset = oldest < now and oldest + window - now or window
  for after = used + cost, used + units, cost do
    reply[size + 1], reply[size + 2] = after, reset
    size = size + 2
  end
  if admitted == count then
    return admitted, size
  end
  local wait, stored = reset, used
  used = used + units
  if cost > limit or used + cost > limit + 1 then
    -- More than the oldest unit has to expire.
    quota.ops, quota.key = quota.ops or make_ops(), key
    quota.used, quota.stored, quota.oldest, quota.skipped = used, stored, oldest, 0
    quota.ops.judge(quota, quota, cost)
    used, wait, reset = quota.used, quota.wait, quota.reset
  end
  reply[size + 1], reply[size + 2], reply[size + 3] = used, wait, reset
  return admitted, size + 3
end

return make_ops, fast_path
