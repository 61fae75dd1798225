--[[
packed_log: the operations of sliding_log. Runs of units charged at one time, oldest first, are packed in
the value; the older ones of a large log are a list of segments. Twin of
src/algorithm/sliding_log/sliding_log.rs: a unit charged at t counts in [t, t + window).

KEYS    none; the caller passes the key of the list
ARGV    none; the caller passes the state and its quotas
reply   ops
calls   those of segments
server  Redis 5.0

Stored: the time that times count from; the second at which the list expires, 0 without segments; the position
before the first run; the oldest segment, if there is one; then for each run its time and position. The position
of a run is how many units were charged up to and with it, modulo 2^32. `lua/README.md` describes the bytes.

A run that had expired when the newest run was charged counts no more, wherever the clock steps. A charge
removes expired runs when they are half of all.
]]

local unpack, pack, sub, floor = struct.unpack, struct.pack, string.sub, math.floor
local SEGMENT, MAX_RUNS, MAX_UNIT_RUNS, run_size_of, _, encode_time = require('runs')
local open_piece, time_in, position_in, first_later_in, with_positions = require('piece')

-- Positions, and times of narrow runs, are below this.
local RANGE = 4294967296

-- Times of wide runs are below this: after 8.9 years, a log needs a new base.
local WIDE_RANGE = 281474976710656

-- In place of the second at which a list expires: there are no segments, and each run is one unit, of which
-- only the time is stored.
local UNIT_RUNS = 1

-- Returns the piece of the run at an index, and the index in it.
local function piece_of(log, index)
  if index >= log.listed then
    return log.tail, index - log.listed
  end
  local number = floor(index / SEGMENT)
  return log.list.segment(log, number), index - number * SEGMENT
end

local function time_of(log, index)
  return time_in(piece_of(log, index))
end

local function position_of(log, index)
  return position_in(piece_of(log, index))
end

-- Returns the position before the run at an index.
local function position_before(log, index)
  local piece, at = piece_of(log, index)
  return position_in(piece, at - 1)
end

-- Sets the runs in the value, behind those of segments.
local function set_tail(log, text, has_unit_runs)
  local tail = open_piece(text, log.is_wide, has_unit_runs, 0)
  log.tail, log.length = tail, log.listed + (#text - 16) / tail.run_size
end

-- Returns the first number from `low` on for which `holds` holds, or `high`. It is likely to be near `low`.
local function search(low, high, holds)
  local probe, step = low, 1
  while probe < high and not holds(probe) do
    low, probe, step = probe + 1, probe + step, step * 2
  end
  high = math.min(probe, high)
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(middle) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Returns the index of the first run after `limit`, from `low` on, or the number of runs.
local function first_later(log, low, limit)
  if low < log.listed then
    local segments = log.listed / SEGMENT
    local number = search(floor(low / SEGMENT), segments, function(number)
      return time_of(log, (number + 1) * SEGMENT - 1) > limit
    end)
    if number < segments then
      local first = number * SEGMENT
      return first + first_later_in(log.list.segment(log, number), math.max(low - first, 0), limit)
    end
    low = log.listed
  end
  return log.listed + first_later_in(log.tail, low - log.listed, limit)
end

-- Encodes the runs of a range anew, as the value's. Segments keep those before `listed`. Positions are
-- those that `change` returns, if there is one. Runs without units are left out, except the newest of a
-- large log: its time says what has expired.
local function rebuild(log, from, till, listed, change)
  local before, times, positions, count = position_before(log, from), {}, {}, 0
  before = change and change(from - 1, before) or before
  local last, has_unit_runs = before, true
  for index = from, till - 1 do
    local time, position = time_of(log, index), position_of(log, index)
    position = change and change(index, position) or position
    if position ~= last or listed > 0 and index == till - 1 then
      count = count + 1
      has_unit_runs = has_unit_runs and position == (last + 1) % RANGE
      times[count], positions[count], last = time, position, position
    end
  end
  local base, parts = times[1] or now, {}
  for index = 1, count do
    local run = encode_time(times[index] - base, log.is_wide)
    parts[index] = has_unit_runs and run or run .. pack('>I4', positions[index])
  end
  log.listed, log.position = listed, last
  set_tail(log, pack('>dI4I4', base, 0, before) .. table.concat(parts), has_unit_runs)
end

-- Appends a run of now or, if the last one is of now, adds to that.
local function append_run(log, units)
  local tail, position = log.tail, (log.position + units) % RANGE
  local is_now = log.length > log.listed and time_of(log, log.length - 1) == now
  if tail.has_unit_runs and (is_now or units > 1) then
    set_tail(log, with_positions(tail), false)
    tail = log.tail
  end
  local text, run = tail.text, encode_time(now - tail.base, log.is_wide)
  if not tail.has_unit_runs then
    run = run .. pack('>I4', position)
  end
  text = is_now and sub(text, 1, #text - tail.run_size) or text
  log.position = position
  set_tail(log, text .. run, tail.has_unit_runs)
end

-- Moves the runs later than now to now, so that none counts for longer than a window.
local function rewind(log)
  local first_after = math.max(first_later(log, 0, now), log.first)
  local position, listed = log.position, log.listed
  local moved = (position - position_before(log, first_after)) % RANGE
  if first_after < listed then
    -- The value takes what is left of a segment.
    listed = floor(first_after / SEGMENT) * SEGMENT
  end
  if log.first >= listed then
    rebuild(log, log.first, first_after, 0)
    log.first = 0
  else
    rebuild(log, listed, first_after, listed)
  end
  if moved > 0 then
    if log.length == log.listed then
      log.tail.base = now
      log.tail.text = pack('>dI4I4', now, 0, log.tail.before)
    end
    append_run(log, moved)
    log.tidied = true
  end
end

-- Takes what is in the value: the base, the second at which the list expires, the position before the runs; with
-- segments their forms and the oldest of them; then the runs.
local function open(log, data)
  local size, from, segment = #data, 17, nil
  if size > 16 then
    local _, list, _, form = unpack('>dI4I4B', data)
    local has_unit_runs = list == UNIT_RUNS
    if list > UNIT_RUNS then
      has_unit_runs, from = form % 2 == 1, 34 + SEGMENT * run_size_of(log.is_wide, form > 1)
      segment, log.list_expires = sub(data, 18, from - 1), list
      log.list = log.list or require('segments')
    end
    local runs = (size - from + 1) / run_size_of(log.is_wide, has_unit_runs)
    if runs >= 1 and runs % 1 == 0 then
      log.segments = segment and log.list.open(log, segment) or 0
      log.listed = log.segments * SEGMENT
      return set_tail(log, sub(data, 1, 16) .. sub(data, from), has_unit_runs)
    end
  end
  local _, _, wrong_type = require('value')
  wrong_type()
end

-- Takes the stored data, if there are any. A cost rewinds what is later than now.
local function load(log, data, cost)
  log.is_wide = log.quota.is_wide
  log.tail, log.length, log.listed, log.first, log.kept = nil, 0, 0, 0, 0
  log.used, log.segments, log.list_expires, log.renews_list = 0, 0, 0, false
  if data then
    open(log, data)
    local newest = time_of(log, log.length - 1)
    log.position = position_of(log, log.length - 1)
    log.kept = first_later(log, 0, newest - log.window)
    log.first = log.kept
    if cost > 0 and newest > now then
      rewind(log)
    end
    if newest < now or cost > 0 then
      log.first = first_later(log, log.first, now - log.window)
    end
    if log.first < log.length then
      log.used = (log.position - position_before(log, log.first)) % RANGE
    end
  end
  log.stored, log.kept_segments = log.used, log.listed / SEGMENT
end

-- Returns the index of the run of a unit, counted from the oldest that counts.
local function run_of_unit(log, unit)
  local before = position_before(log, log.first)
  return search(log.first, log.length, function(index)
    return (position_of(log, index) - before) % RANGE > unit
  end)
end

-- Returns the microseconds until a unit expires. Units that are not written yet are charged now.
local function expires_in(log, unit)
  if unit >= log.stored then
    return log.window
  end
  local time = time_of(log, run_of_unit(log, unit))
  return time < now and time + log.window - now or log.window
end

local function charge(log, cost)
  log.used, log.charged = log.used + cost, true
end

-- Appends units that are charged now, as one run.
local function append(log, units)
  if log.first == log.length then
    -- Nothing counts: the log begins anew.
    log.listed, log.first, log.position = 0, 0, 0
    set_tail(log, pack('>dI4I4', now, 0, 0), true)
  elseif now - log.tail.base >= (log.is_wide and WIDE_RANGE or RANGE) then
    local is_listed = log.listed > 0
    rebuild(log, is_listed and log.listed or log.first, log.length, log.listed)
    log.first = is_listed and log.first or 0
  end
  append_run(log, units)
end

-- Removes the expired runs from the value.
local function trim(log)
  local tail, before = log.tail, position_before(log, log.first)
  local text = pack('>dI4I4', tail.base, 0, before) .. sub(tail.text, 17 + log.first * tail.run_size)
  set_tail(log, text, tail.has_unit_runs)
  log.first = 0
end

-- Moves runs of the value to new segments, if it has too many.
local function limit_tail(log)
  local tail, runs = log.tail, log.length - log.listed
  local max_runs = log.listed > 0 and SEGMENT + 1 or tail.has_unit_runs and MAX_UNIT_RUNS or MAX_RUNS
  if runs <= max_runs or not log.extra_key then
    return
  end
  if log.segments == 0 then
    log.list = log.list or require('segments')
    log.list.open(log)
  end
  local text = log.list.push(log, tail, runs)
  if text then
    set_tail(log, text, tail.has_unit_runs)
    if log.length - log.listed == 1 and not tail.has_unit_runs then
      -- A single run may do without its position.
      rebuild(log, log.listed, log.length, log.listed)
    end
  end
end

-- Returns the data to store, or nothing. `write` does what the list needs.
local function save(log)
  local units = log.used - log.stored
  if log.listed > 0 and log.first >= log.listed then
    -- All segments have expired.
    log.first, log.length, log.listed = log.first - log.listed, log.length - log.listed, 0
  end
  local is_half_expired = log.first > 0 and 2 * log.first >= log.length
  if units > 0 then
    append(log, units)
  elseif log.first == log.length then
    log.listed, log.length = 0, 0
  end
  if log.listed == 0 and log.first > 0 and log.length > 0 then
    if log.tidied or is_half_expired or log.length > MAX_RUNS then
      trim(log)
    end
  end
  log.pushed, log.dropped = nil, log.listed == 0 and log.kept_segments or floor(log.first / SEGMENT)
  if log.length == 0 then
    return
  end
  limit_tail(log)
  local tail = log.tail
  local base, before = sub(tail.text, 1, 8), sub(tail.text, 13, 16)
  if log.listed == 0 then
    return base .. pack('>I4', tail.has_unit_runs and UNIT_RUNS or 0) .. before .. sub(tail.text, 17)
  end
  if log.list_expires * 1000000 < now + log.window then
    log.renews_list = true
    log.list_expires = floor((floor(now / 1000) + log.ttl) / 1000)
  end
  local oldest = log.list.segment(log, log.dropped)
  local form = (tail.has_unit_runs and 1 or 0) + (oldest.has_unit_runs and 2 or 0)
  local list_expires = pack('>I4', log.list_expires)
  return base .. list_expires .. before .. string.char(form) .. oldest.text .. sub(tail.text, 17)
end

-- Writes what the list needs, after the value.
local function write(log)
  if log.segments > 0 or log.pushed then
    log.list.write(log)
  end
end

-- The units of a charge are those of its time: units of one microsecond are interchangeable. Returns whether
-- units were given back.
local function refund(log, charged, units)
  if log.length == 0 or charged.time + log.window <= now then
    return false
  end
  local at = first_later(log, log.kept, charged.time - 1)
  if at == log.length or time_of(log, at) ~= charged.time then
    return false
  end
  local taken = math.min(units, (position_of(log, at) - position_before(log, at)) % RANGE)
  if taken == 0 then
    return false
  end
  local from, listed = log.kept, log.listed
  if from >= listed then
    listed = 0
  else
    from = listed
  end
  if at < listed then
    log.list.take(log, at, taken)
  end
  rebuild(log, from, log.length, listed, function(index, old)
    return index >= at and (old - taken) % RANGE or old
  end)
  log.first, log.used, log.stored = listed > 0 and log.kept or 0, 0, 0
  return true
end

-- Forgets all units. Returns whether there were any.
local function clear(log)
  log.first, log.used, log.stored = log.length, 0, 0
  return log.tail ~= nil
end

-- Removes the oldest units, which would expire first. Returns whether there were any.
local function credit(log, units)
  if units >= log.used then
    return log.used > 0 and clear(log)
  end
  local before = (position_before(log, log.first) + units) % RANGE
  local at = run_of_unit(log, units)
  if at < log.listed then
    log.list.credit(log, at, before)
    log.first = at
    return true
  end
  local tail, first = log.tail, at - log.listed
  local text = tail.has_unit_runs and with_positions(tail) or tail.text
  text = pack('>dI4I4', tail.base, 0, before) .. sub(text, 17 + first * run_size_of(log.is_wide, false))
  log.listed, log.first = 0, 0
  set_tail(log, text, false)
  return true
end

return {
  load = load,
  judge = require('judge_log')(expires_in),
  charge = charge,
  save = save,
  write = write,
  refund = refund,
  clear = clear,
  credit = credit,
}
