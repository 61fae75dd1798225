--[[
sliding_log: the exact sliding window, as packed runs. This file charges a log of which nothing unusual is
stored; packed_log, which says what is stored, does the rest.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code, first_later, time_at
calls   for the oldest segment of a large log LINDEX
server  Redis 5.0
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub

-- As in packed_log.
local MAX_RUNS = 128
local MAX_NARROW = 3600000000
local SEGMENT = 64
local RANGE = 4294967296
local UNIT_RUNS = 1

-- Runs of one unit each that are stored without their positions.
local MAX_UNIT_RUNS = 160

local function make_ops()
  return require('packed_log')
end

local function prepare(quota)
  quota.is_wide = quota.window > MAX_NARROW
end

-- Returns the time since the base of the run at a byte.
local function time_at(stored, at, is_wide)
  if is_wide then
    local high, low = unpack('>I2I4', stored, at)
    return high * RANGE + low
  end
  return (unpack('>I4', stored, at))
end

-- Returns the byte and the time of the first run after `edge`. The run at byte `low` is not later, the one at
-- byte `high` is. Runs are often spaced evenly, so the first two of the probes are guesses.
local function first_later(stored, low, high, edge, size, is_wide, oldest, newest)
  local runs = (high - low) / size
  local guess = (edge - oldest) / (newest - oldest) * runs
  local middle, probes = low + (guess - guess % 1) * size, 1
  while high - low > size do
    if middle <= low or middle >= high then
      runs = (high - low) / size
      middle = low + (runs - runs % 2) / 2 * size
    end
    local time = time_at(stored, middle, is_wide)
    if time > edge then
      high, newest = middle, time
      middle = probes == 1 and high - 4 * size or 0
    else
      low = middle
      middle = probes == 1 and low + 4 * size or 0
    end
    probes = 2
  end
  return high, newest
end

-- Returns when the oldest unit of a large log expires, and the position before it; nothing if a segment has
-- expired, or units were given back.
local function oldest_of_list(quota, list, size)
  if not quota.extra_key or list * 1000000 < now + quota.window then
    return
  end
  local segment = redis.call('LINDEX', quota.extra_key, '0')
  if not segment or #segment ~= 16 + SEGMENT * size then
    return
  end
  local is_wide = quota.is_wide
  local base, offset, before = unpack('>dI4I4', segment)
  local edge = now - quota.window - base
  local at, time = 17, time_at(segment, 17, is_wide)
  if time <= edge then
    local last = #segment - size + 1
    local newest = time_at(segment, last, is_wide)
    if newest <= edge then
      return
    end
    at, time = first_later(segment, 17, last, edge, size, is_wide, time, newest)
    before = unpack('>I4', segment, at - 4)
  end
  if unpack('>I4', segment, at + size - 4) ~= before then
    return base + time + quota.window - now, (before + offset) % RANGE
  end
end

-- Returns the runs of a range without their positions, if each is one unit.
local function unit_runs(stored, first, to, size, before)
  local times = {}
  for at = first, to, size do
    before = (before + 1) % RANGE
    if unpack('>I4', stored, at + size - 4) ~= before then
      return
    end
    times[#times + 1] = sub(stored, at, at + size - 5)
  end
  return table.concat(times)
end

-- Charges a quota of which nothing unusual is stored. Returns the new data or, as the third value says, the
-- run to append; `true` if the check is refused, whose reply is appended; or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local window, is_wide, units, limit = quota.window, quota.is_wide, cost * count, quota.limit
  local base, list, used, reset, position = now, units == 1 and UNIT_RUNS or 0, 0, window, units
  local start, first, before, is_run, trims = nil, nil, 0, false, false
  local run_size = is_wide and 10 or 8
  if stored then
    local since, expires, oldest, newest, total, max_runs
    since, expires, before = unpack('>dI4I4', stored, from)
    start, max_runs = from + 16, MAX_RUNS
    if expires == UNIT_RUNS then
      run_size, max_runs = run_size - 4, MAX_UNIT_RUNS
      newest = time_at(stored, to - run_size + 1, is_wide)
      total = before + (to - start + 1) / run_size
    else
      newest = time_at(stored, to - run_size + 1, is_wide)
      total = unpack('>I4', stored, to - 3)
    end
    local elapsed = now - since
    local edge = elapsed - window
    if newest >= elapsed or not is_wide and elapsed >= RANGE then
      return
    elseif expires > UNIT_RUNS then
      if to - start + 1 >= MAX_RUNS * run_size then
        return
      end
      reset, before = oldest_of_list(quota, expires, run_size)
      if not reset then
        return
      end
      is_run = true
    elseif newest > edge then
      if expires == UNIT_RUNS and units ~= 1 then
        return
      end
      oldest, first = time_at(stored, start, is_wide), start
      if oldest <= edge then
        first, oldest =
          first_later(stored, start, to - run_size + 1, edge, run_size, is_wide, oldest, newest)
        if expires == UNIT_RUNS then
          before = before + (first - start) / run_size
        else
          before = unpack('>I4', stored, first - 4)
        end
      end
      reset, is_run = oldest - edge, true
      local length = to - start + 1
      -- Half of the runs have expired, or there is no room for another.
      trims = first > start and (2 * (first - start) >= length or length >= max_runs * run_size)
      if not trims and length >= max_runs * run_size then
        return
      end
    else
      before, run_size = 0, is_wide and 10 or 8
    end
    if is_run then
      used = total - before
      if used < 0 then
        used = used + RANGE
      end
      base, list, position = since, expires, total + units
    end
  end
  if used + units > limit then
    local is_plain = count == 1 and cost <= limit and used + cost == limit + 1
    if is_plain and first and first > start then
      -- A refusal also removes what has expired since the last charge: packed_log does that.
      local last = time_at(stored, to - run_size + 1, is_wide)
      is_plain = time_at(stored, first - run_size, is_wide) <= last - window
    end
    if is_plain and first then
      -- It waits for the oldest unit.
      reply[size + 1], reply[size + 2], reply[size + 3] = used, reset, reset
      return true, size + 3
    end
    return
  end
  for after = used + cost, used + units, cost do
    reply[size + 1], reply[size + 2] = after, reset
    size = size + 2
  end
  local kept = ''
  if trims then
    kept, before = sub(stored, first, to), before % RANGE
    if list == 0 and units == 1 and used == #kept / run_size then
      local times = unit_runs(stored, first, to, run_size, before)
      if times then
        kept, list = times, UNIT_RUNS
      end
    end
  end
  local run
  local time = now - base
  if is_wide then
    local low = time % RANGE
    run = pack('>I2I4', (time - low) / RANGE, low)
  else
    run = pack('>I4', time)
  end
  if list ~= UNIT_RUNS then
    run = run .. pack('>I4', position % RANGE)
  end
  if is_run and not trims then
    return run, size, true
  end
  return pack('>dI4I4', base, list, before) .. kept .. run, size
end

return make_ops, attempt, prepare, string.byte('l'), first_later, time_at
