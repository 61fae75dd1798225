--[[
list: how sliding_log keeps its units. A kind of log, as log has it.

KEYS    none; is given one
ARGV    none
reply   a kind of log
calls   LLEN, LINDEX twice; then for a trim LINDEX, LTRIM; to charge those of push; to undo that LTRIM;
calls   to refund LLEN, LINDEX, LREM
server  Redis 5.0
]]

local call = redis.call
local text, push = need('text'), need('push')

-- When the unit at an index was charged.
local function entry_at(key, index)
  return call('LINDEX', key, text(index)) + 0
end

-- How many entries there are, the oldest and, as text, the newest.
local function survey(key)
  local length = call('LLEN', key)
  if length == 0 then
    return 0
  end
  local newest = call('LINDEX', key, '-1')
  return length, length > 1 and entry_at(key, 0) or newest + 0, newest
end

-- The index of the first entry later than `time`, in a list whose first entry is not and whose last
-- one is, and the entry, unless it is the last. Gallops from the head, where what has expired is, so
-- that the cost is the logarithm of the answer and not of the length.
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

-- The only loop over stored units. Pushes before it forgets: without the right to RPUSH the log stays as
-- it was.
local function rewind(key, length)
  local kept = 0
  if entry_at(key, 0) <= now then
    kept = first_later(key, length, now)
  end
  if kept == 0 then
    push(key, length)
    call('LTRIM', key, text(length), '-1')
  else
    push(key, 1)
    call('LTRIM', key, '0', text(kept - 1))
    push(key, length - kept)
  end
end

local function trim(key, expired)
  call('LTRIM', key, text(expired), '-1')
  return expired
end

local function drop(key, expired, units)
  trim(key, expired + units)
end

local function pop(key, count)
  call('LTRIM', key, '0', text(-count - 1))
end

local function take(key, time, units)
  -- How many entries are at most `latest`.
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
  -- No more than there are, and from the nearer end: LREM walks until it has found them.
  units = math.min(units, last - first)
  call('LREM', key, text(first < length / 2 and units or -units), text(time))
  return true
end

return {
  survey = survey,
  entry_at = entry_at,
  expired = first_later,
  trim = trim,
  rewind = rewind,
  push = push,
  take = take,
  drop = drop,
  pop = pop,
}
