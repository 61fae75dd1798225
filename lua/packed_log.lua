--[[
packed_log: the operations of sliding_log. Runs of units charged at one time, oldest first, are packed in
the value; the older ones of a large log are a list of segments. Twin of
src/algorithm/sliding_log/sliding_log.rs: a unit charged at t counts in [t, t + window).

KEYS    none; the caller passes the key of the list
ARGV    none; the caller passes the state and its quotas
reply   ops
calls   those of segments
server  Redis 5.0

Stored: the time that times count from; the second at which the list expires, 0 without a list; the position
before the first run; then for each run its time and position. The position of a run is how many units were
charged up to and with it, modulo 2^32. `lua/README.md` describes the bytes.

A run that had expired when the newest run was charged counts no more, wherever the clock steps. A charge
removes expired runs when they are half of all.
]]

local unpack, pack, sub, floor = struct.unpack, struct.pack, string.sub, math.floor

-- Runs in the value. More become a list of segments.
local MAX_RUNS = 128

-- The longest window whose times fit into four bytes, with room for as many more runs.
local MAX_NARROW = 3600000000

-- The runs of a segment.
local SEGMENT = 64

-- Positions, and times of narrow runs, are below this.
local RANGE = 4294967296

-- In place of the second at which a list expires: there is no list, and each run is one unit, of which only
-- the time is stored.
local UNIT_RUNS = 1

-- Returns the time and the position of a run of a text: of the value, or of a segment.
local function run_in(log, text, index, base)
  local at, time = 17 + index * log.run_size, nil
  if log.is_wide then
    local high, low = unpack('>I2I4', text, at)
    time = base + high * RANGE + low
  else
    time = base + unpack('>I4', text, at)
  end
  if log.has_unit_runs then
    return time, (log.before + index + 1) % RANGE
  end
  return time, (unpack('>I4', text, at + log.run_size - 4))
end

-- Returns the time and the position of the run at an index, and where its segment is.
local function run_at(log, index)
  if index >= log.listed then
    return run_in(log, log.text, index - log.listed, log.base)
  end
  local number = floor(index / SEGMENT)
  local text = log.list.segment(log, number)
  local base, offset = unpack('>dI4', text)
  local time, position = run_in(log, text, index - number * SEGMENT, base)
  return time, (position + offset) % RANGE
end

-- Returns the position before the run at an index.
local function position_before(log, index)
  if index > 0 then
    local _, position = run_at(log, index - 1)
    return position
  elseif log.listed > 0 then
    local _, offset, before = unpack('>dI4I4', log.list.segment(log, 0))
    return (before + offset) % RANGE
  end
  return log.before
end

local function encode(log, time, position)
  local later = time - log.base
  if log.is_wide then
    return pack('>I2I4I4', floor(later / RANGE), later % RANGE, position % RANGE)
  end
  return pack('>I4I4', later, position % RANGE)
end

-- Returns the index of the first run for which `is_later` holds, or the number of runs. Gallops from the
-- run at `low`, where the expired ones are.
local function search(log, low, is_later)
  local high, step = low, 1
  while high < log.length and not is_later(run_at(log, high)) do
    low, high, step = high + 1, high + step, step * 2
  end
  high = math.min(high, log.length)
  while low < high do
    local middle = floor((low + high) / 2)
    if is_later(run_at(log, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function first_later(log, low, limit)
  return search(log, low, function(time)
    return time > limit
  end)
end

-- Encodes the runs of a range anew, as the value's. The list keeps those before `listed`. Positions are
-- those that `change` returns, if there is one. Runs without units are left out, except the newest of a
-- large log: its time says what has expired.
local function rebuild(log, from, till, listed, change)
  local before, times, positions, count = position_before(log, from), {}, {}, 0
  local last = before
  for index = from, till - 1 do
    local time, position = run_at(log, index)
    position = change and change(index, position) or position
    if position ~= last or listed > 0 and index == till - 1 then
      count = count + 1
      times[count], positions[count], last = time, position, position
    end
  end
  log.base, log.before, log.position = times[1] or now, before, last
  local parts = { pack('>dI4I4', log.base, 0, before) }
  for index = 1, count do
    parts[index + 1] = encode(log, times[index], positions[index])
  end
  log.text, log.listed, log.length = table.concat(parts), listed, listed + count
end

-- Removes the last run of the value and appends one of now.
local function replace_last(log, position)
  log.text = sub(log.text, 1, #log.text - log.run_size) .. encode(log, now, position)
end

-- Adds the positions to runs of one unit each, as all that changes a log expects.
local function add_positions(log)
  if not log.has_unit_runs then
    return
  end
  local text, position, size = log.text, log.before, log.run_size
  local parts = { sub(text, 1, 8), pack('>I4I4', 0, position) }
  for at = 17, #text, size do
    position = (position + 1) % RANGE
    parts[#parts + 1] = sub(text, at, at + size - 1) .. pack('>I4', position)
  end
  log.text, log.run_size, log.has_unit_runs = table.concat(parts), size + 4, false
end

-- Moves the runs later than now to now, so that none counts for longer than a window.
local function rewind(log)
  add_positions(log)
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
    local is_empty = log.length == log.listed
    if not is_empty and run_at(log, log.length - 1) == now then
      replace_last(log, position)
    else
      if is_empty then
        log.base = now
        log.text = pack('>dI4I4', now, 0, log.before)
      end
      log.text, log.length = log.text .. encode(log, now, position), log.length + 1
    end
    log.position, log.tidied = position, true
  end
end

-- Takes the stored data, if there are any. A cost rewinds what is later than now.
local function load(log, data, cost)
  log.is_wide = log.window > MAX_NARROW
  log.run_size = log.is_wide and 10 or 8
  log.text, log.length, log.listed, log.first, log.kept = nil, 0, 0, 0, 0
  log.used, log.segments, log.list_expires, log.renews_list = 0, nil, 0, false
  log.has_unit_runs = false
  if data then
    log.has_unit_runs = #data > 16 and unpack('>I4', data, 9) == UNIT_RUNS
    log.run_size = log.run_size - (log.has_unit_runs and 4 or 0)
    if #data < 16 + log.run_size or (#data - 16) % log.run_size ~= 0 then
      local _, _, wrong_type = require('value')
      wrong_type()
    end
    log.text = data
    log.base, log.list_expires, log.before = unpack('>dI4I4', data)
    if log.list_expires > UNIT_RUNS then
      log.list = log.list or require('segments')
      log.segments = log.list.count(log)
      log.listed = log.segments * SEGMENT
    end
    log.length = log.listed + (#data - 16) / log.run_size
    local newest
    newest, log.position = run_at(log, log.length - 1)
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
  log.stored, log.kept_segments = log.used, floor(log.listed / SEGMENT)
end

-- Returns the index of the run of a unit, counted from the oldest that counts.
local function run_of_unit(log, unit)
  local before = position_before(log, log.first)
  return search(log, log.first, function(_, position)
    return (position - before) % RANGE > unit
  end)
end

-- Returns the microseconds until a unit expires. Units that are not written yet are charged now.
local function expires_in(log, unit)
  if unit >= log.stored then
    return log.window
  end
  local time = run_at(log, run_of_unit(log, unit))
  return time < now and time + log.window - now or log.window
end

local function charge(log, cost)
  log.used, log.charged = log.used + cost, true
end

-- Appends units that are charged now, as one run.
local function append(log, units)
  if log.first == log.length then
    -- Nothing counts: the log begins anew.
    log.base, log.before, log.listed, log.first, log.length = now, 0, 0, 0, 1
    log.text = pack('>dI4I4', now, 0, 0) .. encode(log, now, units)
    return
  end
  local position = (log.position + units) % RANGE
  if run_at(log, log.length - 1) == now then
    return replace_last(log, position)
  end
  if not log.is_wide and now - log.base >= RANGE then
    local is_listed = log.listed > 0
    rebuild(log, is_listed and log.listed or log.first, log.length, log.listed)
    log.first = is_listed and log.first or 0
  end
  log.text, log.length = log.text .. encode(log, now, position), log.length + 1
end

-- Removes the expired runs from the value.
local function trim(log)
  log.before = position_before(log, log.first)
  log.text = pack('>dI4I4', log.base, 0, log.before) .. sub(log.text, 17 + log.first * log.run_size)
  log.length, log.first = log.length - log.first, 0
end

-- Returns the data to store, or nothing. `write` does what the list needs.
local function save(log)
  add_positions(log)
  local units = log.used - log.stored
  if log.listed > 0 and log.first >= log.listed then
    -- All of the list has expired.
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
  log.dropped_segments, log.pushed = floor(log.first / SEGMENT), nil
  if log.listed == 0 then
    log.dropped_segments = log.kept_segments
  end
  if log.length - log.listed > MAX_RUNS and log.extra_key then
    -- The oldest runs of the value become a segment.
    local last = 16 + SEGMENT * log.run_size
    log.pushed = pack('>dI4I4', log.base, 0, log.before) .. sub(log.text, 17, last)
    local _, position = run_in(log, log.text, SEGMENT - 1, log.base)
    log.text = pack('>dI4I4', log.base, 0, position) .. sub(log.text, last + 1)
    log.listed = log.listed + SEGMENT
  end
  if log.listed == 0 then
    log.list_expires = 0
  elseif log.pushed or log.list_expires * 1000000 < now + log.window then
    log.renews_list = true
    log.list_expires = floor((floor(now / 1000) + log.ttl) / 1000)
  end
  if log.length > 0 then
    return sub(log.text, 1, 8) .. pack('>I4', log.list_expires) .. sub(log.text, 13)
  end
end

-- Writes what the list needs, after the value.
local function write(log)
  if log.segments or log.pushed then
    log.list = log.list or require('segments')
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
  if at == log.length or run_at(log, at) ~= charged.time then
    return false
  end
  local _, position = run_at(log, at)
  local taken = math.min(units, (position - position_before(log, at)) % RANGE)
  if taken == 0 then
    return false
  end
  add_positions(log)
  local from, listed = log.kept, log.listed
  if from >= listed then
    listed = 0
  else
    from = listed
  end
  if at < listed then
    log.list.take(log, at, taken, SEGMENT)
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
  return log.text ~= nil
end

-- Removes the oldest units, which would expire first. Returns whether there were any.
local function credit(log, units)
  if units >= log.used then
    return log.used > 0 and clear(log)
  end
  add_positions(log)
  local before = (position_before(log, log.first) + units) % RANGE
  local at = run_of_unit(log, units)
  if at < log.listed then
    log.list.credit(log, at, before, SEGMENT)
    log.first = at
    return true
  end
  at = at - log.listed
  log.before, log.listed, log.first = before, 0, 0
  log.text = pack('>dI4I4', log.base, 0, before) .. sub(log.text, 17 + at * log.run_size)
  log.length = (#log.text - 16) / log.run_size
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
