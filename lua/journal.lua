--[[
journal: the newest units of a value that holds several logs, which one charge would else write to each. For
fast_path and value.

KEYS    none
ARGV    none; the caller passes the value and its quotas
reply   charge, fold
calls   none
server  Redis 5.0

A journal is the last section. Its data are a base, as a double, and the time since then of each unit, which
was charged to every log of the value.
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub
local RANGE = 4294967296
local _, _, _, _, counting = require('sliding_log')
local _, _, _, _, _, encode_time, first_later, is_wide_window = require('runs')

-- Units of a journal. Then the logs take them.
local MAX_UNITS = 32

-- Returns the time since the base of the journal, the byte of its first unit, and the number of its units; nothing
-- if something unusual is stored. A value without a journal has no units in it.
local function open(stored, at)
  if at > #stored then
    return 0, at, 0
  end
  local elapsed, start = now - unpack('>d', stored, at), at + 8
  local units = (#stored - start + 1) / 4
  local newest = units > 0 and unpack('>I4', stored, #stored - 3) or -1
  if newest < elapsed and elapsed < RANGE then
    return elapsed, start, units
  end
end

-- Returns the units of a quota that count, with those of the journal, and the microseconds until the oldest
-- expires; nothing if something unusual is stored.
local function counting_with_journal(quota, stored, elapsed, start, units)
  local used, reset = counting(quota, stored, quota.from, quota.to)
  if units == 0 or not used then
    return used, reset
  elseif used > 0 then
    return used + units, reset
  end
  local edge, last = elapsed - quota.window, #stored - 3
  local oldest, newest = unpack('>I4', stored, start), unpack('>I4', stored, last)
  if newest <= edge then
    return 0, reset
  elseif oldest <= edge then
    start, oldest = first_later(stored, start, last, edge, 4, false, oldest, newest)
  end
  return (last - start) / 4 + 1, oldest - edge
end

local function append_reply(first_quota, is_admitted, reply, size)
  local quota = first_quota
  repeat
    local used, reset = quota.used, quota.reset
    if is_admitted then
      reply[size + 1], reply[size + 2] = used + 1, reset
      size = size + 2
    else
      -- A full quota waits for its oldest unit.
      reply[size + 1], reply[size + 2] = used, used == quota.limit and reset or 0
      reply[size + 3] = used > 0 and reset or 0
      size = size + 3
    end
    quota = quota.next
  until not quota
  return size
end

-- Decides a check of one unit, if nothing unusual is stored. The data of the journal begin `at` a byte. Returns the
-- unit to append, or `true` if the check is refused; nothing if it is admitted and there is no room.
local function charge(first_quota, stored, at, reply, size)
  local elapsed, start, units = open(stored, at)
  if not elapsed then
    return
  end
  local left = unpack('>I4', stored) * 1000000 - now
  local quota, is_admitted, has_room = first_quota, true, at <= #stored and units < MAX_UNITS
  repeat
    if unpack('>I4', stored, quota.from + 8) > 1 then
      -- The log has a list.
      return
    end
    local used, reset = counting_with_journal(quota, stored, elapsed, start, units)
    if not used or used > quota.limit or quota.limit == 0 then
      return
    end
    quota.used, quota.reset = used, reset
    is_admitted, has_room = is_admitted and used < quota.limit, has_room and left >= quota.window
    quota = quota.next
  until not quota
  if has_room or not is_admitted then
    return not is_admitted or pack('>I4', elapsed), append_reply(first_quota, is_admitted, reply, size)
  end
end

-- Returns the data of a log with the units of a journal.
local function folded(data, is_wide, journal)
  local base, list = unpack('>dI4', data)
  local parts, shift = { data }, unpack('>d', journal) - base
  local position = list ~= 1 and unpack('>I4', data, #data - 3)
  for at = 9, #journal, 4 do
    local time = unpack('>I4', journal, at) + shift
    local run = encode_time(time, is_wide)
    if position then
      position = (position + 1) % RANGE
      run = run .. pack('>I4', position)
    end
    parts[#parts + 1] = run
  end
  return table.concat(parts)
end

-- Moves the units of a journal to the logs.
local function fold(sections, order, journal)
  for index = 1, #order do
    local header = order[index]
    local high, low = unpack('>I2I4', header, 2)
    sections[header] = folded(sections[header], is_wide_window(high * RANGE + low), journal)
  end
end

return { charge = charge, fold = fold }
