--[[
sliding_log: the exact sliding window. A list of the times at which units were charged, in whole
microseconds, oldest first, one entry a unit.

KEYS    none; is given one by decide
ARGV    none; is given a quota by decide
reply   none; answers decide
calls   LLEN, LINDEX twice; then for a trim LINDEX, LTRIM or UNLINK; to charge RPUSH; to
calls   refund LLEN, LINDEX, LREM
server  Redis 5.0
]]

local function sliding_log()
  -- As many arguments as are passed to one command at once: unpack fails at 8 000.
  local CHUNK = 4000

  local unpack = table.unpack or unpack
  local call, min = redis.call, math.min

  -- When the unit at an index, as text, was charged.
  local function entry_at(key, index)
    return call('LINDEX', key, index) + 0
  end

  -- How many entries there are, the oldest and, as text, the newest.
  local function survey(key)
    local length = call('LLEN', key)
    if length == 0 then
      return 0
    end
    local oldest = call('LINDEX', key, '0')
    return length, oldest + 0, length > 1 and call('LINDEX', key, '-1') or oldest
  end

  local function time_at(key, index)
    return entry_at(key, text(index))
  end

  -- The index of the first entry later than `time`, in a list whose first entry is not and whose last
  -- one is, and the entry, unless it is the last. Gallops from the head, where what has expired is, so
  -- that the cost is the logarithm of the answer and not of the length.
  local function first_later(key, length, time)
    local low, high, later = 0, 1, nil
    while high < length - 1 and not later do
      local entry = time_at(key, high)
      if entry > time then
        later = entry
      else
        low, high = high, high * 2
      end
    end
    high = min(high, length - 1)
    while high - low > 1 do
      local middle = div_down(low + high, 2)
      local entry = time_at(key, middle)
      if entry > time then
        high, later = middle, entry
      else
        low = middle
      end
    end
    return high, later
  end

  local function push(key, count)
    local time = text(now)
    if count == 1 then
      call('RPUSH', key, time)
      return
    end
    local entries = {}
    for index = 1, min(count, CHUNK) do
      entries[index] = time
    end
    while count > 0 do
      local pushed = min(count, CHUNK)
      call('RPUSH', key, unpack(entries, 1, pushed))
      count = count - pushed
    end
  end

  -- The only loop over stored units.
  local function rewind(key, length)
    local kept = 0
    if entry_at(key, '0') <= now then
      kept = first_later(key, length, now)
    end
    if kept == 0 then
      call('UNLINK', key)
    else
      call('LTRIM', key, '0', text(kept - 1))
    end
    push(key, length - kept)
  end

  local function trim(key, expired)
    call('LTRIM', key, text(expired), '-1')
    return expired
  end

  -- How many entries are at most `time`.
  local function not_later(key, length, time)
    if entry_at(key, '0') > time then
      return 0
    elseif entry_at(key, '-1') <= time then
      return length
    end
    return first_later(key, length, time)
  end

  local function take(key, time, units)
    local length = call('LLEN', key)
    if length == 0 then
      return false
    end
    local first = not_later(key, length, time - 1)
    local last = not_later(key, length, time)
    if first == last then
      return false
    end
    -- No more than there are, and from the nearer end: LREM walks until it has found them.
    units = min(units, last - first)
    call('LREM', key, text(first < length / 2 and units or -units), text(time))
    return true
  end

  return log({
    survey = survey,
    entry_at = entry_at,
    expired = first_later,
    trim = trim,
    rewind = rewind,
    push = push,
    take = take,
  })
end
