--[[
sliding_counter: the estimated sliding window. Counts this aligned window in full, and the previous one by
the part that a window ending now still overlaps, rounded up. Twin of src/algorithm/sliding_counter.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, nil, prepare, code, format, length, step
calls   none
server  Redis 5.0

Stored: the generation, the number of the window, the count of the previous window, the count of this
window.
]]

local unpack, pack = struct.unpack, struct.pack
local FORMAT, LENGTH = '>ddI4I4', 24
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
  -- After a step back of the clock, both windows overlap the sliding window in full.
  return { current, 0, min(numbers[2] + numbers[3], 4294967295) }
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
      local generation, window, previous, count = unpack(FORMAT, data)
      return { window, previous, count }, generation
    end
  end,

  format = function(numbers, generation)
    return pack(FORMAT, generation, numbers[1], numbers[2], numbers[3])
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
    if numbers[1] > quota.current then
      local of_this = min(numbers[3], units)
      numbers[3] = numbers[3] - of_this
      numbers[2] = math.max(numbers[2] - (units - of_this), 0)
      return numbers
    end
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
  local window, limit = quota.window, quota.limit
  -- This window counts until the end of the next one.
  quota.needs = quota.left + window
  -- The most units of the previous window that `step` multiplies exactly, in ticks of a microsecond.
  local most = floor(9007199254740991 / window)
  quota.max_previous = limit <= most and most or 0
end

-- Charges the stored numbers, or none. Returns the new numbers and those of the quotas that follow; fewer if one
-- refuses or something unusual is stored.
local function step(quota, units, generation, window, previous, counted, ...)
  local current = quota.current
  if window ~= current then
    if not window or window < current - 1 then
      previous, counted = 0, 0
    elseif window < current then
      previous, counted = counted, 0
    else
      return
    end
  end
  local room = quota.limit - counted - units
  if previous == 0 then
    if room < 0 then
      return
    elseif counted == 0 then
      generation = now
    end
  elseif previous > quota.max_previous or previous * quota.left / quota.window > room then
    return
  end
  local following = quota.following
  if following then
    return generation, current, previous, counted + units, following.step(following, units, ...)
  end
  return generation, current, previous, counted + units
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, nil, prepare, string.byte('c'), FORMAT, LENGTH, step
