--[[
journal: the newest units of a value that holds several logs, which one charge would else write to each. For
fast_path and value.

KEYS    none
ARGV    none; the caller passes the value and its quotas
reply   charge, empty, fold
calls   none
server  Redis 5.0

A journal is the last section. Its data are a base, as a double, and the time since then of each unit, which
was charged to every log of the value.
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub
local floor, RANGE = math.floor, 4294967296
local _, _, _, _, first_later, time_at = require('sliding_log')

-- Units of a journal. Then the logs take them.
local MAX_UNITS = 32

local HEADER = 'j' .. string.rep('\0', 10)

-- Decides a check of one unit, if nothing unusual is stored. Returns the unit to append, or `true` if the check
-- is refused; nothing if it is admitted and there is no room.
local function charge(first_quota, stored, reply, size)
  local quota, at, last = first_quota, 5, #stored
  repeat
    if at > last or sub(stored, at, at + 8) ~= quota.header then
      return
    end
    local length = unpack('>I2', stored, at + 9)
    quota.from, quota.to = at + 11, length == 0 and last or at + 10 + length
    at, quota = quota.to + 1, quota.next
  until not quota
  local left, has_room = unpack('>I4', stored) * 1000000 - now, false
  local start, units, later, latest = at + 19, 0, 0, -1
  if at <= last then
    if sub(stored, at, at + 10) ~= HEADER then
      return
    end
    later, units = now - unpack('>d', stored, at + 11), (last - start + 1) / 4
    if units > 0 then
      latest = unpack('>I4', stored, last - 3)
    end
    if latest >= later or later >= RANGE then
      return
    end
    has_room = units < MAX_UNITS
  end
  local admitted, expired = true, false
  quota = first_quota
  repeat
    local from, to, window, is_wide = quota.from, quota.to, quota.window, quota.is_wide
    local base, list, before = unpack('>dI4I4', stored, from)
    local run_size, elapsed = (is_wide and 10 or 8) - (list == 1 and 4 or 0), now - base
    local newest = time_at(stored, to - run_size + 1, is_wide)
    if list > 1 or newest >= elapsed or not is_wide and elapsed >= RANGE then
      return
    end
    local edge, used, reset = elapsed - window, 0, window
    -- A refusal also removes what has expired since the last charge: multi_quota does that.
    local charged, has_expired = units > 0 and later - latest or elapsed - newest, false
    if newest > edge then
      local first = from + 16
      local oldest = time_at(stored, first, is_wide)
      if oldest <= edge then
        first, oldest =
          first_later(stored, first, to - run_size + 1, edge, run_size, is_wide, oldest, newest)
        has_expired = time_at(stored, first - run_size, is_wide) > edge - charged
      end
      if list == 1 then
        used = (to - first + 1) / run_size
      else
        if first > from + 16 then
          before = unpack('>I4', stored, first - 4)
        end
        used = (unpack('>I4', stored, to - 3) - before) % RANGE
      end
      used, reset = used + units, oldest - edge
    elseif units > 0 and later - window < latest then
      edge = later - window
      local first, oldest = start, unpack('>I4', stored, start)
      if oldest <= edge then
        first, oldest = first_later(stored, start, last - 3, edge, 4, false, oldest, latest)
      end
      used, reset, has_expired = (last - first + 1) / 4, oldest - edge, true
    else
      has_expired = true
    end
    if used > quota.limit or quota.limit == 0 then
      return
    end
    quota.used, quota.reset = used, reset
    admitted, has_room = admitted and used < quota.limit, has_room and left >= window
    expired = expired or has_expired
    quota = quota.next
  until not quota
  if admitted and not has_room or not admitted and expired then
    return
  end
  quota = first_quota
  repeat
    local used, reset = quota.used, quota.reset
    if admitted then
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
  return not admitted or pack('>I4', later), size
end

-- Returns an empty journal.
local function empty()
  return HEADER .. pack('>d', now)
end

-- Returns the data of a log with the units of a journal.
local function folded(data, is_wide, journal)
  local base, list = unpack('>dI4', data)
  local parts, shift = { data }, unpack('>d', journal) - base
  local position = list ~= 1 and unpack('>I4', data, #data - 3)
  for at = 9, #journal, 4 do
    local time = unpack('>I4', journal, at) + shift
    local run = is_wide and pack('>I2I4', floor(time / RANGE), time % RANGE) or pack('>I4', time)
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
    sections[header] = folded(sections[header], high * RANGE + low > 3600000000, journal)
  end
end

return { charge = charge, empty = empty, fold = fold }
