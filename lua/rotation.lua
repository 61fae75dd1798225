--[[
rotation: moves one segment of a large log: the oldest of the list to the value, once the one there has expired;
or the runs in the value to the list, once there are enough. For fast_path.

KEYS    none; the caller passes the quota
ARGV    none
reply   rotate
calls   LINDEX or LLEN; after the value is written LTRIM or RPUSH
server  Redis 5.0
]]

local call, unpack, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local SEGMENT, _, _, run_size_of, time_at = require('runs')

-- The byte of the data in a value with one section.
local DATA = 16

-- Returns the value with the oldest segment of the list in place of its own.
local function take_next(quota, stored, form, after)
  local segment = call('LINDEX', quota.extra_key, '0')
  if segment then
    local has_unit_runs = #segment == 16 + SEGMENT * run_size_of(quota.is_wide, true)
    form = string.char(form % 2 + (has_unit_runs and 2 or 0))
    return sub(stored, 1, DATA + 15) .. form .. segment .. sub(stored, after), function()
      call('LTRIM', quota.extra_key, '1', '-1')
    end
  end
end

-- Returns the value without the runs that become a segment.
local function add_segment(quota, stored, has_unit_runs, start, size)
  if call('LLEN', quota.extra_key) == 0 then
    -- It would get no time to live.
    return
  end
  local list, before = unpack('>I4I4', stored, DATA + 8)
  local base, after = sub(stored, DATA, DATA + 7), start + size
  local segment = base .. pack('>I4I4', 0, before) .. sub(stored, start, after - 1)
  before = has_unit_runs and (before + SEGMENT) % 4294967296 or unpack('>I4', stored, after - 4)
  local header = sub(stored, 1, DATA - 1) .. base .. pack('>I4I4', list, before)
  return header .. sub(stored, DATA + 16, start - 1) .. sub(stored, after), function()
    call('RPUSH', quota.extra_key, segment)
  end
end

-- Returns the new value, and what changes the list once it is written; nothing if neither is due.
local function rotate(quota, stored)
  local _, list, _, form = unpack('>dI4I4B', stored, DATA)
  if list < 2 or not quota.extra_key then
    return
  end
  local is_wide, has_unit_runs = quota.is_wide, form % 2 == 1
  local size = run_size_of(is_wide, form > 1)
  local start = DATA + 33 + SEGMENT * size
  local base = unpack('>d', stored, DATA + 17)
  if base + time_at(stored, start - size, is_wide) <= now - quota.window then
    return take_next(quota, stored, form, start)
  end
  size = SEGMENT * run_size_of(is_wide, has_unit_runs)
  if #stored - start >= size then
    return add_segment(quota, stored, has_unit_runs, start, size)
  end
end

return rotate
