--[[
list: the backend of sliding_log, with the functions that log documents.

KEYS    none; the caller passes the key
ARGV    none
reply   backend
calls   LLEN, LINDEX twice; then for a trim LINDEX, LTRIM; to charge those of push; to undo that LTRIM;
calls   to refund LLEN, LINDEX, LREM
server  Redis 5.0
]]

local call = redis.call
local format_integer, push = require('format_integer'), require('push')

local function entry_at(key, index)
  return call('LINDEX', key, format_integer(index)) + 0
end

local function bounds(key)
  local length = call('LLEN', key)
  if length == 0 then
    return 0
  end
  local newest = call('LINDEX', key, '-1')
  return length, length > 1 and entry_at(key, 0) or newest + 0, newest
end

-- Returns the index of the first entry later than `time`, and the entry unless it is the last. The first
-- entry of the list must not be later, the last one must be. Gallops from the head, where the expired
-- units are: the cost grows with the logarithm of the result, not of the length.
local function first_later(key, length, time)
  local low, high, later = 0, 1, nil
  while high < length - 1 and not later do
    local entry = entry_at(key, high)
    if entry > time then
      later = entry
    else
      low, high = high, high * 2
    end
  end
  high = math.min(high, length - 1)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    local entry = entry_at(key, middle)
    if entry > time then
      high, later = middle, entry
    else
      low = middle
    end
  end
  return high, later
end

-- The only loop over stored units. Pushes before it trims: without the permission for RPUSH the log stays
-- as it was.
local function rewind(key, length)
  local unchanged = 0
  if entry_at(key, 0) <= now then
    unchanged = first_later(key, length, now)
  end
  if unchanged == 0 then
    push(key, length)
    call('LTRIM', key, format_integer(length), '-1')
  else
    push(key, 1)
    call('LTRIM', key, '0', format_integer(unchanged - 1))
    push(key, length - unchanged)
  end
end

local function trim(key, expired)
  call('LTRIM', key, format_integer(expired), '-1')
  return expired
end

local function drop(key, expired, units)
  trim(key, expired + units)
end

local function pop(key, count)
  call('LTRIM', key, '0', format_integer(-count - 1))
end

local function take(key, time, units)
  -- Returns how many entries are at most `latest`.
  local function not_later(length, latest)
    if entry_at(key, 0) > latest then
      return 0
    elseif entry_at(key, -1) <= latest then
      return length
    end
    return (first_later(key, length, latest))
  end

  local length = call('LLEN', key)
  if length == 0 then
    return false
  end
  local first = not_later(length, time - 1)
  local last = not_later(length, time)
  if first == last then
    return false
  end
  -- Never more than there are, and from the nearer end: LREM walks until it has found them all.
  units = math.min(units, last - first)
  call('LREM', key, format_integer(first < length / 2 and units or -units), format_integer(time))
  return true
end

return {
  bounds = bounds,
  entry_at = entry_at,
  expired = first_later,
  trim = trim,
  rewind = rewind,
  push = push,
  take = take,
  drop = drop,
  pop = pop,
}
