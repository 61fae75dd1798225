--[[
sliding_counter: the estimated sliding window. The count of this aligned window, and that of the one
before by the part of it that a window back from now still overlaps, rounded up. Twin of
src/algorithm/sliding_counter.rs.

KEYS    none; is given one
ARGV    none; is given a quota
reply   steps, grant, prepare
calls   those of tally
server  Redis 5.0

Stored: the window, the count of the one before, its own count.
]]

local tick_of = need('tick')
local floor, ceil, min = math.floor, math.ceil, math.min

local function tick_for(numbers, quota)
  return tick_of(math.max(numbers[2], numbers[3], quota.limit), quota.window)
end

-- The longest overlap at which the window before counts as at most `target`.
local function overlap_for(numbers, quota, target)
  if target >= numbers[2] then
    return quota.window
  end
  local tick = tick_for(numbers, quota)
  return floor(target * floor(quota.window / tick) / numbers[2]) * tick
end

-- The most units of the window before that count as at most `target` now.
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

local steps, grant = need('tally')({
  is_after = function(numbers, quota)
    return numbers[1] > quota.current
  end,

  at = at,
  used = used,

  until_at_most = function(numbers, quota, target)
    local overlap = quota.left
    local left = target - numbers[3]
    if left >= 0 then
      -- The window before has to slide on.
      return overlap - min(overlap_for(numbers, quota, left), overlap)
    end
    -- What counts in full has to become the window before, and then slide on.
    local next = { numbers[1] + 1, numbers[3], 0 }
    return overlap + quota.window - overlap_for(next, quota, target)
  end,

  add = function(numbers, _, cost)
    numbers[3] = numbers[3] + cost
  end,

  receipt = function(numbers)
    return numbers[1]
  end,

  take = function(numbers, _, charge, units)
    -- Of this window, or of the one before.
    local count = 3 - (numbers[1] - charge.mark)
    if count ~= 3 and count ~= 2 then
      return false
    end
    numbers[count] = math.max(numbers[count] - units, 0)
    return true
  end,

  -- Of this window first, whose units would count longest. Then of the one before as few as it takes:
  -- with each, the part of them that counts falls by one or not at all. Only where more counts than a
  -- limit that was lowered since may it fall by more: what is left is counted in a finer tick.
  give = function(numbers, quota, units)
    local settled = at(numbers, quota)
    if units <= settled[3] then
      numbers[3] = numbers[3] - units
      return numbers
    end
    local previous = previous_for(settled, quota, used(settled, quota) - units)
    if numbers[1] < settled[1] then
      -- What is stored as this window is by now the one before.
      numbers[3] = previous
    else
      numbers[2], numbers[3] = previous, 0
    end
    return numbers
  end,
}, '^(%d+) (%d+) (%d+) (%d+)$', '%s %d %d %d')

return steps, grant, need('aligned')
