--[[
sliding_log: the exact sliding window, as packed runs. This file charges a log of which nothing unusual is
stored; packed_log, which says what is stored, does the rest.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code, counting, first_later
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

-- Returns the units of a large log that count, and the microseconds until the oldest expires; nothing if a
-- segment has expired, or the oldest unit was given back.
local function counting_of_list(quota, position, list, run_size)
  if not quota.extra_key or list * 1000000 < now + quota.window then
    return
  end
  local segment = redis.call('LINDEX', quota.extra_key, '0')
  if not segment or #segment ~= 16 + SEGMENT * run_size then
    return
  end
  local is_wide = quota.is_wide
  local base, offset, before = unpack('>dI4I4', segment)
  local edge = now - quota.window - base
  local at, time = 17, time_at(segment, 17, is_wide)
  if time <= edge then
    local last = #segment - run_size + 1
    local newest = time_at(segment, last, is_wide)
    if newest <= edge then
      return
    end
    at, time = first_later(segment, 17, last, edge, run_size, is_wide, time, newest)
    before = unpack('>I4', segment, at - 4)
  end
  if unpack('>I4', segment, at + run_size - 4) ~= before then
    return (position - before - offset) % RANGE, time - edge
  end
end

local function run_size_of(quota, list)
  return (quota.is_wide and 10 or 8) - (list == UNIT_RUNS and 4 or 0)
end

-- Returns the units that count, the microseconds until the oldest expires, and the byte of its run, unless that is
-- in the list; nothing if something unusual is stored, such as times that are not before now.
local function counting(quota, stored, from, to)
  local base, list, before = unpack('>dI4I4', stored, from)
  local is_wide, elapsed, run_size = quota.is_wide, now - base, run_size_of(quota, list)
  local edge = elapsed - quota.window
  local newest = time_at(stored, to - run_size + 1, is_wide)
  if newest >= elapsed or not is_wide and elapsed >= RANGE then
    return
  elseif list > UNIT_RUNS then
    return counting_of_list(quota, unpack('>I4', stored, to - 3), list, run_size)
  elseif newest <= edge then
    return 0, quota.window
  end
  local first = from + 16
  local oldest = time_at(stored, first, is_wide)
  if oldest <= edge then
    first, oldest = first_later(stored, first, to - run_size + 1, edge, run_size, is_wide, oldest, newest)
  end
  if list == UNIT_RUNS then
    return (to - first + 1) / run_size, oldest - edge, first
  elseif first > from + 16 then
    before = unpack('>I4', stored, first - 4)
  end
  return (unpack('>I4', stored, to - 3) - before) % RANGE, oldest - edge, first
end

-- Returns the time of a run.
local function encode_time(time, is_wide)
  if is_wide then
    local low = time % RANGE
    return pack('>I2I4', (time - low) / RANGE, low)
  end
  return pack('>I4', time)
end

-- Returns the data of a log that begins with this charge.
local function begin(quota, units)
  local time = encode_time(0, quota.is_wide)
  if units == 1 then
    return pack('>dI4I4', now, UNIT_RUNS, 0) .. time
  end
  return pack('>dI4I4', now, 0, 0) .. time .. pack('>I4', units)
end

-- Returns the runs of a range without their positions, if each is one unit.
local function without_positions(stored, first, to, run_size, before)
  local times = {}
  for at = first, to, run_size do
    before = (before + 1) % RANGE
    if unpack('>I4', stored, at + run_size - 4) ~= before then
      return
    end
    times[#times + 1] = sub(stored, at, at + run_size - 5)
  end
  return table.concat(times)
end

-- Returns the run of a charge to append, and true; or, where expired runs are removed, the new data; nothing if
-- there is no room. `first` is the byte of the oldest run that counts.
local function add_run(quota, stored, from, to, first, units)
  local base, list, before = unpack('>dI4I4', stored, from)
  local run_size, start, length = run_size_of(quota, list), from + 16, to - from - 15
  local run, max_runs = encode_time(now - base, quota.is_wide), MAX_RUNS
  if list ~= UNIT_RUNS then
    run = run .. pack('>I4', (unpack('>I4', stored, to - 3) + units) % RANGE)
  elseif units == 1 then
    max_runs = MAX_UNIT_RUNS
  else
    return
  end
  local has_room, expired = length < max_runs * run_size, first and first - start or 0
  if has_room and 2 * expired < length then
    return run, true
  elseif expired == 0 then
    return
  end
  local kept = sub(stored, first, to)
  if list == 0 then
    before = unpack('>I4', stored, first - 4)
    local times = units == 1 and without_positions(stored, first, to, run_size, before)
    if times then
      kept, list, run = times, UNIT_RUNS, sub(run, 1, -5)
    end
  end
  return pack('>dI4I4', base, list, before) .. kept .. run
end

-- Charges a quota of which nothing unusual is stored. Returns the new data or, as the third value says, the
-- run to append; `true` if the check is refused, whose reply is appended; or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local limit, units, used, reset, first = quota.limit, cost * count, 0, quota.window, nil
  if stored then
    used, reset, first = counting(quota, stored, from, to)
    if not used then
      return
    end
  end
  if used + units > limit then
    if count == 1 and cost <= limit and used + cost == limit + 1 then
      -- It waits for the oldest unit.
      reply[size + 1], reply[size + 2], reply[size + 3] = used, reset, reset
      return true, size + 3
    end
    return
  end
  local data, is_run
  if used == 0 then
    data = begin(quota, units)
  else
    data, is_run = add_run(quota, stored, from, to, first, units)
  end
  if not data then
    return
  end
  for after = used + cost, used + units, cost do
    reply[size + 1], reply[size + 2] = after, reset
    size = size + 2
  end
  return data, size, is_run
end

return make_ops, attempt, prepare, string.byte('l'), counting, first_later
