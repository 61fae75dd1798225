--[[
sliding_log: the exact sliding window, as packed runs. This file charges a log of which nothing unusual is
stored; packed_log, which says what is stored, does the rest.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code, counting
calls   none
server  any
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub
local SEGMENT, MAX_RUNS, MAX_UNIT_RUNS, run_size_of, time_at, encode_time, first_later, is_wide_window =
  require('runs')

-- As in packed_log.
local RANGE = 4294967296
local WIDE_RANGE = 281474976710656
local UNIT_RUNS = 1

local function make_ops()
  return require('packed_log')
end

local function prepare(quota)
  quota.is_wide = is_wide_window(quota.window)
  quota.rotate = function(...)
    quota.rotate = require('rotation')
    return quota.rotate(...)
  end
end

-- Returns the units of a large log that count, and the microseconds until the oldest expires; nothing if its
-- oldest segment has expired, or the oldest unit was given back.
local function counting_of_segments(quota, stored, position, list, start, after)
  local is_wide = quota.is_wide
  local base, offset, before = unpack('>dI4I4', stored, start)
  local edge, run_size = now - quota.window - base, (after - start - 16) / SEGMENT
  local at, last = start + 16, after - run_size
  local newest = time_at(stored, last, is_wide)
  if newest <= edge or list * 1000000 < now + quota.window then
    return
  end
  local time = time_at(stored, at, is_wide)
  if time <= edge then
    at, time = first_later(stored, at, last, edge, run_size, is_wide, time, newest)
  end
  local runs = (at - start - 16) / run_size
  if run_size == run_size_of(is_wide, true) then
    before = before + runs
  else
    before = unpack('>I4', stored, at - 4)
    if unpack('>I4', stored, at + run_size - 4) == before then
      return
    end
  end
  return (position - before - offset) % RANGE, time - edge
end

-- Returns the units that count, and the microseconds until the oldest expires; then the byte of its run, unless
-- that is in a segment, the byte of the first run, the size of a run, and what is packed first. Returns nothing if
-- something unusual is stored, such as times that are not before now.
local function counting(quota, stored, from, to)
  local base, list, before, form = unpack('>dI4I4B', stored, from)
  local is_wide, elapsed, start, position = quota.is_wide, now - base, from + 16, nil
  local run_size = is_wide and 10 or 8
  if list > UNIT_RUNS then
    -- The oldest segment is before the runs.
    start = from + 33 + SEGMENT * (form > 1 and run_size - 4 or run_size)
    position = form % 2 == 1 and before
  elseif list == UNIT_RUNS then
    position = before
  end
  if position then
    run_size = run_size - 4
    position = position + (to - start + 1) / run_size
  else
    position = unpack('>I4', stored, to - 3)
  end
  local at = to - run_size + 1
  local newest = is_wide and time_at(stored, at, true) or unpack('>I4', stored, at)
  if newest >= elapsed or elapsed >= (is_wide and WIDE_RANGE or RANGE) then
    return
  elseif list > UNIT_RUNS then
    local used, reset = counting_of_segments(quota, stored, position, list, from + 17, start)
    return used, reset, nil, start, run_size, base, list
  end
  local edge = elapsed - quota.window
  if newest <= edge then
    return 0, quota.window
  end
  local first, oldest = start, is_wide and time_at(stored, start, true) or unpack('>I4', stored, start)
  if oldest <= edge then
    first, oldest = first_later(stored, start, at, edge, run_size, is_wide, oldest, newest)
    before = list == UNIT_RUNS and before + (first - start) / run_size or unpack('>I4', stored, first - 4)
  end
  return (position - before) % RANGE, oldest - edge, first, start, run_size, base, list
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
-- there is no room.
local function add_run(quota, stored, to, units, first, start, run_size, base, list)
  local run, length, max_runs = encode_time(now - base, quota.is_wide), to - start + 1, MAX_UNIT_RUNS
  if run_size > #run then
    run = run .. pack('>I4', (unpack('>I4', stored, to - 3) + units) % RANGE)
    max_runs = MAX_RUNS
  elseif units > 1 then
    return
  end
  local has_room = length < (list > UNIT_RUNS and SEGMENT + 1 or max_runs) * run_size
  local expired = first and first - start or 0
  if has_room and 2 * expired < length then
    return run, true
  elseif expired == 0 then
    return
  end
  local kept, before = sub(stored, first, to), unpack('>I4', stored, start - 4)
  if list == UNIT_RUNS then
    before = (before + expired / run_size) % RANGE
  else
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
  local limit, units, used, reset = quota.limit, cost * count, 0, quota.window
  local first, start, run_size, base, list
  if stored then
    used, reset, first, start, run_size, base, list = counting(quota, stored, from, to)
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
    data, is_run = add_run(quota, stored, to, units, first, start, run_size, base, list)
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

return make_ops, attempt, prepare, string.byte('l'), counting
