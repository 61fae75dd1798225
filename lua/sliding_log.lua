--[[
sliding_log: the exact sliding window, as packed runs. This file charges a log of which nothing unusual is
stored; packed_log, which says what is stored, does the rest.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code
calls   for the oldest segment of a large log LINDEX
server  Redis 5.0
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub

-- As in packed_log.
local MAX_RUNS = 128
local MAX_NARROW = 3600000000
local SEGMENT = 64
local RANGE = 4294967296

local function make_ops()
  return require('packed_log')
end

local function prepare(quota)
  quota.is_wide = quota.window > MAX_NARROW
end

-- Returns the time since the base and the position of the run at a byte.
local function wide_run(stored, at)
  local high, low, position = unpack('>I2I4I4', stored, at)
  return high * RANGE + low, position
end

local function narrow_run(stored, at)
  local time, position = unpack('>I4I4', stored, at)
  return time, position
end

-- Returns the byte and the time of the first run after `edge`, and the position before it. The run at byte
-- `low` is not later, the one at byte `high` is.
local function first_later(stored, low, high, edge, run_size)
  local run_at = run_size == 8 and narrow_run or wide_run
  local time, before
  while high - low > run_size do
    local runs = (high - low) / run_size
    local middle = low + (runs - runs % 2) / 2 * run_size
    local at, position = run_at(stored, middle)
    if at > edge then
      high, time = middle, at
    else
      low, before = middle, position
    end
  end
  if not time then
    time = run_at(stored, high)
  end
  if not before then
    local _, position = run_at(stored, low)
    before = position
  end
  return high, time, before
end

-- Returns when the oldest unit of a large log expires, and the position before it; nothing if a segment has
-- expired, or units were given back.
local function oldest_of_list(quota, list, run_size)
  if not quota.extra_key or list * 1000000 < now + quota.window then
    return
  end
  local segment = redis.call('LINDEX', quota.extra_key, '0')
  if not segment or #segment ~= 16 + SEGMENT * run_size then
    return
  end
  local run_at = run_size == 8 and narrow_run or wide_run
  local base, offset, before = unpack('>dI4I4', segment)
  local edge = now - quota.window - base
  local at, time = 17, run_at(segment, 17)
  if time <= edge then
    local last = #segment - run_size + 1
    if run_at(segment, last) <= edge then
      return
    end
    at, time, before = first_later(segment, 17, last, edge, run_size)
  end
  local _, position = run_at(segment, at)
  if position ~= before then
    return base + time + quota.window - now, (before + offset) % RANGE
  end
end

-- Charges a quota of which nothing unusual is stored. Returns the new data or, as the third value says, the
-- run to append; or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local window, is_wide, units = quota.window, quota.is_wide, cost * count
  local base, used, reset, position, data, is_run = now, 0, window, units, nil, false
  if stored then
    local since, list, before, oldest, low = unpack('>dI4I4I4I4', stored, from)
    local elapsed, run_size, start, newest, total = now - since, 8, from + 16, nil, nil
    if is_wide then
      local high
      high, newest, total = unpack('>I2I4I4', stored, to - 9)
      newest, run_size = high * RANGE + newest, 10
      -- Six bytes of the first run, of which eight were read as two numbers.
      oldest = oldest * 65536 + (low - low % 65536) / 65536
    else
      newest, total = unpack('>I4I4', stored, to - 7)
    end
    local edge = elapsed - window
    if newest >= elapsed or not is_wide and elapsed >= RANGE then
      return
    elseif list > 0 then
      if to - start + 1 >= MAX_RUNS * run_size then
        return
      end
      reset, before = oldest_of_list(quota, list, run_size)
      if not reset then
        return
      end
      is_run = true
    elseif newest > edge then
      local first = start
      if oldest <= edge then
        first, oldest, before = first_later(stored, start, to - run_size + 1, edge, run_size)
      end
      reset, is_run = oldest - edge, true
      local length = to - start + 1
      if first > start and (2 * (first - start) >= length or length >= MAX_RUNS * run_size) then
        -- Half of the runs have expired, or there is no room for another.
        data, is_run = pack('>dI4I4', since, 0, before) .. sub(stored, first, to), false
      elseif length >= MAX_RUNS * run_size then
        return
      end
    end
    if is_run or data then
      used = total - before
      if used < 0 then
        used = used + RANGE
      end
      base, position = since, total + units
    end
  end
  if used + units > quota.limit then
    return
  end
  for after = used + cost, used + units, cost do
    reply[size + 1], reply[size + 2] = after, reset
    size = size + 2
  end
  local run
  local time = now - base
  if position >= RANGE then
    position = position - RANGE
  end
  if is_wide then
    local low = time % RANGE
    run = pack('>I2I4I4', (time - low) / RANGE, low, position)
  else
    run = pack('>I4I4', time, position)
  end
  if is_run then
    return run, size, true
  end
  return (data or pack('>dI4I4', now, 0, 0)) .. run, size
end

return make_ops, attempt, prepare, string.byte('l')
