--[[
gcra: the generic cell rate algorithm, as a meter: units flow in when they are charged and drain evenly,
a limit of them in a window. Up to the limit may stand in the meter at once. Counts in whole parts of a
unit, so that nothing drifts where the limit does not divide the window. Twin of src/algorithm/gcra.rs.

KEYS    none; is given one
ARGV    none; is given a quota
reply   steps, grant, prepare
calls   those of tally
server  Redis 5.0

Stored: a time; the whole units that stood in the meter then; what stood of one more, in units times
microseconds, of which a whole unit is a window; how many units have flowed in since the meter was empty
or this was full; the rate, which is the limit of the last charge. Then the numbers of holes, three for
each. Where the level is above the limit of a quota, it drains by the rate, otherwise by that limit.
]]

local tick_of = need('tick')
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- As many units flow in before another meter begins.
local MAX_POURED = 4294967295

local function prepare(quota)
  quota.tick = tick_of(quota.limit, quota.window)
  quota.whole = ceil(quota.window / quota.tick)
end

-- In which parts of a unit a meter is read that drains at a rate: a unit is `whole` of them, and `rate`
-- of them drain each tick.
local function scale_of(rate, quota)
  if rate == quota.limit then
    return rate, quota.tick, quota.whole
  end
  local tick = tick_of(rate, quota.window)
  return rate, tick, ceil(quota.window / tick)
end

-- The same of a meter as it is stored. It drains under a limit of 0 too.
local function scale(numbers, quota)
  return scale_of(max(numbers[2] > quota.limit and numbers[5] or quota.limit, 1), quota)
end

local function at(numbers, quota)
  if #numbers == 0 then
    return { now, 0, 0, 0, quota.limit }
  end
  local rate, tick, whole = scale(numbers, quota)
  local level = numbers[2] * whole + ceil(numbers[3] / tick)
  local time = min(numbers[1], now)
  local passed = floor((now - time) / tick)
  if level == 0 or passed >= ceil(level / rate) then
    return { now, 0, 0, 0, quota.limit }
  end
  level = level - passed * rate
  local units = floor(level / whole)
  -- Not now: the rest of a tick goes on counting.
  local settled = { time + passed * tick, units, (level - units * whole) * tick, numbers[4], rate }
  for index = 6, #numbers do
    settled[index] = numbers[index]
  end
  return settled
end

-- Lowers the level as it is stored.
local function lower(numbers, tick, whole, taken)
  local level = max(numbers[2] * whole + ceil(numbers[3] / tick) - taken, 0)
  numbers[2] = floor(level / whole)
  numbers[3] = (level - numbers[2] * whole) * tick
end

local steps, grant = need('tally')({
  base = 6,
  group = 3,

  is_after = function(numbers)
    return numbers[1] > now
  end,

  at = at,

  used = function(numbers)
    return numbers[3] > 0 and numbers[2] + 1 or numbers[2]
  end,

  until_at_most = function(numbers, quota, target)
    local rate, tick, whole = scale_of(max(numbers[5], 1), quota)
    local over = numbers[2] * whole + ceil(numbers[3] / tick) - target * whole
    return ceil(over / rate) * tick - (now - numbers[1])
  end,

  add = function(numbers, quota, cost)
    local begins = numbers[4] + cost > MAX_POURED
    if begins then
      numbers[4] = 0
      for index = #numbers, 6, -1 do
        numbers[index] = nil
      end
    end
    numbers[2], numbers[4], numbers[5] = numbers[2] + cost, numbers[4] + cost, quota.limit
    return begins
  end,

  -- The position of the end of the charge.
  receipt = function(numbers)
    return numbers[4]
  end,

  -- Units drain in the order in which they flowed in. So the level minus all that flowed in after a charge is
  -- the most that can be left of it.
  take = function(numbers, quota, charge, units)
    if charge.mark > numbers[4] then
      -- It flowed into another meter, which began in the same microsecond.
      return false
    end
    local rate, tick, whole = scale(numbers, quota)
    local holes = need('holes')
    local after = numbers[4] - charge.mark - holes.after(numbers, charge.mark)
    local level = numbers[2] * whole + ceil(numbers[3] / tick)
    local passed = floor(max(now - numbers[1], 0) / tick)
    level = passed >= ceil(level / rate) and 0 or level - passed * rate
    local taken = min(level - max(after, 0) * whole, units * whole)
    if taken <= 0 then
      return false
    end
    lower(numbers, tick, whole, taken)
    if taken >= whole then
      local start = max(charge.mark - charge.cost, 0)
      holes.add(numbers, start, charge.mark, floor(taken / whole), charge.held > 0)
      holes.forget_drained(numbers, numbers[2])
    end
    return true
  end,

  -- The oldest units go, which would drain next.
  give = function(numbers, quota, units)
    local _, tick, whole = scale(numbers, quota)
    if numbers[2] > quota.limit and numbers[2] - units <= quota.limit then
      -- From here on it drains slower for this limit. What has drained until now stays so.
      local settled = at(numbers, quota)
      numbers[1], numbers[2], numbers[3] = now, settled[2], settled[3]
    end
    lower(numbers, tick, whole, units * whole)
    return numbers
  end,
}, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$', '%s %d %d %d %d %d')

return steps, grant, prepare
