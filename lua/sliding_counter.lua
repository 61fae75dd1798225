--[[
sliding_counter: the estimated sliding window. Counts this aligned window in full, and the previous one by
the part that a window ending now still overlaps, rounded up. Twin of src/algorithm/sliding_counter.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code
calls   none
server  Redis 5.0

Stored: the generation, the number of the window, the count of the previous window, the count of this
window.
]]

local unpack, pack = struct.unpack, struct.pack
local tick_of = require('arithmetic')
local floor, ceil, min = math.floor, math.ceil, math.min

local function tick_for(numbers, quota)
  return tick_of(math.max(numbers[2], numbers[3], quota.limit), quota.window)
end

-- Returns the longest overlap at which the previous window counts as at most `target`.
local function overlap_for(numbers, quota, target)
  if target >= numbers[2] then
    return quota.window
  end
  local tick = tick_for(numbers, quota)
  return floor(target * floor(quota.window / tick) / numbers[2]) * tick
end

-- Returns the most units of the previous window that count as at most `target` now.
local function previous_for(numbers, quota, target)
  local tick = tick_for(numbers, quota)
  local most = floor(target * floor(quota.window / tick) / ceil(quota.left / tick))
  return min(math.max(most, target), numbers[2])
end

local function at(numbers, quota)
  local stored, current = numbers[1], quota.current
  if stored == current then
    return numbers
  elseif not stored or current > stored + 1 then
    return { current, 0, 0 }
  elseif current == stored + 1 then
    return { current, numbers[3], 0 }
  end
  return { current, numbers[2], numbers[3] }
end

local function used(numbers, quota)
  local previous, counted = numbers[2], numbers[3]
  if previous == 0 then
    return counted
  end
  local tick = tick_for(numbers, quota)
  local part = ceil(previous * ceil(quota.left / tick) / floor(quota.window / tick))
  return counted + min(part, previous)
end

local rule = {
  parse = function(data)
    if #data == 24 then
      local generation, window, previous, count = unpack('>ddI4I4', data)
      return { window, previous, count }, generation
    end
  end,

  format = function(numbers, generation)
    return pack('>ddI4I4', generation, numbers[1], numbers[2], numbers[3])
  end,

  is_after = function(numbers, quota)
    return numbers[1] > quota.current
  end,

  at = at,
  used = used,

  until_at_most = function(numbers, quota, target)
    local overlap = quota.left
    local left = target - numbers[3]
    if left >= 0 then
      -- The previous window has to slide out far enough.
      return overlap - min(overlap_for(numbers, quota, left), overlap)
    end
    -- This window has to become the previous one, and then slide out far enough.
    local next = { numbers[1] + 1, numbers[3], 0 }
    return overlap + quota.window - overlap_for(next, quota, target)
  end,

  add = function(numbers, _, cost)
    numbers[3] = numbers[3] + cost
  end,

  position = function(numbers)
    return numbers[1]
  end,

  take = function(numbers, _, charge, units)
    -- 3 is the count of this window, 2 of the previous one.
    local count = 3 - (numbers[1] - charge.position)
    if count ~= 3 and count ~= 2 then
      return false
    end
    numbers[count] = math.max(numbers[count] - units, 0)
    return true
  end,

  -- Takes units of this window first, which would count longest. Then as few as possible of the previous
  -- one: each lowers the part that counts by one or not at all. It may fall by more only where more counts
  -- than a limit that was lowered since: what is left is counted in a finer tick.
  credit = function(numbers, quota, units)
    local settled = at(numbers, quota)
    if units <= settled[3] then
      numbers[3] = numbers[3] - units
      return numbers
    end
    local previous = previous_for(settled, quota, used(settled, quota) - units)
    if numbers[1] < settled[1] then
      -- The stored window is the previous one by now.
      numbers[3] = previous
    else
      numbers[2], numbers[3] = previous, 0
    end
    return numbers
  end,
}

local function prepare(quota)
  require('aligned')(quota)
  -- This window counts until the end of the next one.
  quota.needs = quota.left + quota.window
end

-- Charges a quota of which nothing unusual is stored. Returns the new data, or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local current, window, left, limit = quota.current, quota.window, quota.left, quota.limit
  local previous, counted, generation = 0, 0, now
  if stored then
    if to - from ~= 23 then
      return
    end
    local began, of, before, last = unpack('>ddI4I4', stored, from)
    if of == current then
      previous, counted, generation = before, last, began
    elseif of == current - 1 then
      previous, generation = last, began
    elseif of > current then
      return
    end
  end
  -- Below 2^53, the tick is a microsecond. What is counted is at most the limit.
  if (previous > limit and previous or limit) * window >= 9007199254740992 then
    return
  end
  local part = previous > 0 and ceil(previous * left / window) or 0
  local used = counted + part
  if used + cost * count > limit then
    return
  elseif used == 0 then
    generation = now
  end
  local reset
  if part > 0 then
    reset = left - min(floor((part - 1) * window / previous), left)
  end
  for _ = 1, count do
    used, counted = used + cost, counted + cost
    reply[size + 1] = used
    reply[size + 2] = reset or left + window - floor((counted - 1) * window / counted)
    reply[size + 3], reply[size + 4] = generation, current
    size = size + 4
  end
  return pack('>ddI4I4', generation, current, previous, counted), size
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, attempt, prepare, string.byte('c')
