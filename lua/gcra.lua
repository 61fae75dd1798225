--[[
gcra: the generic cell rate algorithm, as a meter that drains. A limit of units flows out evenly in
a window, and up to the limit may stand in it at once. Counts in whole parts of a unit, so that
nothing drifts where the limit does not divide the window. Twin of src/algorithm/gcra.rs.

KEYS    none; is given one
ARGV    none; is given a quota
reply   steps, grant, prepare
calls   those of tally
server  Redis 5.0

Stored: a time, the whole units that stood in the meter then, and what stood of one more, in units
times microseconds: a whole unit is a window of them; the units given back since it was empty or its
limit changed, parts as whole ones; the limit by which it was charged last, by which it drains.
]]

local tick_of = need('tick')
local floor, ceil, min = math.floor, math.ceil, math.min

-- In which parts of a unit the meter is read: a unit is `whole` of them, and a limit of them flows
-- out each tick.
local function prepare(quota)
  quota.tick = tick_of(quota.limit, quota.window)
  quota.whole = ceil(quota.window / quota.tick)
end

-- What stands in the meter: no more than the limit, so that none waits longer than a window where
-- the limit was lowered.
local function level_of(units, part, quota)
  local most = quota.limit * quota.whole
  if units >= quota.limit then
    return most
  end
  return min(most, units * quota.whole + ceil(part / quota.tick))
end

local function at(numbers, quota)
  if #numbers == 0 then
    return { now, 0, 0, 0, 0 }
  end
  local tick, whole, limit = quota.tick, quota.whole, quota.limit
  local level = level_of(numbers[2], numbers[3], quota)
  local time = min(numbers[1], now)
  local passed = floor((now - time) / tick)
  if level == 0 or passed >= ceil(level / limit) then
    return { now, 0, 0, 0, 0 }
  end
  level = level - passed * limit
  local units = floor(level / whole)
  -- Not now: the rest of a tick goes on counting.
  return { time + passed * tick, units, (level - units * whole) * tick, numbers[4], numbers[5] }
end

-- Lowers the level as it is stored, by what is given back.
local function lower(numbers, quota, taken)
  local whole = quota.whole
  local level = level_of(numbers[2], numbers[3], quota) - taken
  numbers[2] = floor(level / whole)
  numbers[3] = (level - numbers[2] * whole) * quota.tick
  numbers[4] = numbers[4] + ceil(taken / whole)
end

local steps, grant = need('tally')({
  is_after = function(numbers)
    return numbers[1] > now
  end,

  at = at,

  used = function(numbers)
    return numbers[3] > 0 and numbers[2] + 1 or numbers[2]
  end,

  until_at_most = function(numbers, quota, target)
    local over = level_of(numbers[2], numbers[3], quota) - target * quota.whole
    return ceil(over / quota.limit) * quota.tick - (now - numbers[1])
  end,

  add = function(numbers, quota, cost)
    numbers[2] = numbers[2] + cost
    if numbers[5] ~= quota.limit then
      numbers[4], numbers[5] = 0, quota.limit
      return true
    end
  end,

  receipt = function(numbers)
    return numbers[3], numbers[4]
  end,

  -- What stood in the meter before a charge drains before it. So of a charge is left at most what of
  -- all that stood there has neither drained nor been given back since, whoever gave it.
  take = function(numbers, quota, charge, units)
    local tick, whole, part = quota.tick, quota.whole, charge.mark
    local left = level_of(charge.used - (part > 0 and 1 or 0), part, quota)
      - ceil(math.max(now - charge.time, 0) / tick) * quota.limit
      - (numbers[4] - charge.back) * whole
    local current = at(numbers, quota)
    left = min(left, level_of(current[2], current[3], quota))
    local taken = math.max(min(left, units * whole), 0)
    lower(numbers, quota, taken)
    return taken > 0
  end,

  give = function(numbers, quota, units)
    lower(numbers, quota, units * quota.whole)
    return numbers
  end,
}, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$', '%s %d %d %d %d %d')

return steps, grant, prepare
