--[[
gcra: the generic cell rate algorithm, as a leaky bucket: charged units flow in, and drain evenly at the
limit per window. The level may rise to the limit. Counts in whole fractions of a unit, so that nothing
drifts where the limit does not divide the window. Twin of src/algorithm/gcra/gcra.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, nil, prepare, code, format, length, step
calls   none
server  Redis 5.0

Stored: the generation; a time; the level in whole units at that time; the rest of the level, in units times
microseconds, where a whole unit is a window; the units that flowed in since the level was last 0 or this
number overflowed; the rate at which the level drains, which is the limit of the last charge. Then three
numbers for each hole.
]]

local unpack, pack = struct.unpack, struct.pack
local FORMAT, LENGTH = '>ddI4dI4I4', 36
local tick_of = require('arithmetic')
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- Units that flow in before a new generation begins.
local MAX_POURED = 4294967295

local function prepare(quota)
  quota.tick = tick_of(quota.limit, quota.window)
  quota.whole = ceil(quota.window / quota.tick)
  -- A level drains in whole ticks, each below a hundred-thousandth of the window.
  quota.needs = quota.window + floor(quota.window / 100000)
end

-- Returns the scale in which stored numbers are computed: how many fractions of a unit drain in each tick, the
-- tick, and the fractions of a whole unit. A counter without charges has no rate.
local function scale(numbers, quota)
  local rate = max(numbers[5], 1)
  if rate == quota.limit then
    return rate, quota.tick, quota.whole
  end
  local tick = tick_of(rate, quota.window)
  return rate, tick, ceil(quota.window / tick)
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
  -- The time is that of the last whole tick: the rest of a tick is not lost.
  local settled = { time + passed * tick, units, (level - units * whole) * tick, numbers[4], rate }
  for index = 6, #numbers do
    settled[index] = numbers[index]
  end
  return settled
end

-- Lowers a stored level.
local function lower(numbers, tick, whole, taken)
  local level = max(numbers[2] * whole + ceil(numbers[3] / tick) - taken, 0)
  numbers[2] = floor(level / whole)
  numbers[3] = (level - numbers[2] * whole) * tick
end

local rule = {
  parse = function(data)
    if #data < 36 or (#data - 36) % 12 ~= 0 then
      return
    end
    local generation, time, level, rest, poured, rate = unpack(FORMAT, data)
    local numbers = { time, level, rest, poured, rate }
    for at = 37, #data, 4 do
      numbers[#numbers + 1] = (unpack('>I4', data, at))
    end
    return numbers, generation
  end,

  format = function(numbers, generation)
    local parts = {
      pack(FORMAT, generation, numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]),
    }
    for index = 6, #numbers do
      parts[#parts + 1] = pack('>I4', numbers[index])
    end
    return table.concat(parts)
  end,

  is_after = function(numbers)
    return numbers[1] > now
  end,

  at = at,

  used = function(numbers)
    return numbers[3] > 0 and numbers[2] + 1 or numbers[2]
  end,

  until_at_most = function(numbers, quota, target)
    local rate, tick, whole = scale(numbers, quota)
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

  -- The end of the charge among all units that flowed in.
  position = function(numbers)
    return numbers[4]
  end,

  -- Units drain in the order in which they flowed in. So at most the level, less what flowed in after a
  -- charge, is left of the charge.
  take = function(numbers, quota, charge, units)
    if charge.position > numbers[4] then
      -- The charge is of another generation, which began in the same microsecond.
      return false
    end
    local rate, tick, whole = scale(numbers, quota)
    local holes = require('holes')
    local after = numbers[4] - charge.position - holes.after(numbers, charge.position)
    local level = numbers[2] * whole + ceil(numbers[3] / tick)
    local passed = floor(max(now - numbers[1], 0) / tick)
    level = passed >= ceil(level / rate) and 0 or level - passed * rate
    local taken = min(level - max(after, 0) * whole, units * whole)
    if taken <= 0 then
      return false
    end
    lower(numbers, tick, whole, taken)
    if taken >= whole then
      local start = max(charge.position - charge.cost, 0)
      holes.add(numbers, start, charge.position, floor(taken / whole), charge.refundable > 0)
      holes.forget_drained(numbers, numbers[2])
    end
    return true
  end,

  -- Takes the oldest units, which would drain next.
  credit = function(numbers, quota, units)
    local _, tick, whole = scale(numbers, quota)
    lower(numbers, tick, whole, units * whole)
    return numbers
  end,
}

-- Charges the stored numbers, or none. Returns the new numbers and those of the quotas that follow; fewer if one
-- refuses or something unusual is stored, such as another rate than the limit.
local function step(quota, units, generation, time, level, rest, poured, rate, ...)
  local limit = quota.limit
  if not rate then
    generation, time, level, rest, poured = now, now, 0, 0, 0
  elseif time > now or rate ~= limit then
    return
  else
    local tick, whole, passed = quota.tick, quota.whole, now - time
    if tick > 1 then
      rest, passed = ceil(rest / tick), floor(passed / tick)
    end
    local left = level * whole + rest - passed * limit
    if left > 0 then
      rest = left % whole
      level, time = (left - rest) / whole, time + passed * tick
      rest = rest * tick
    else
      generation, time, level, rest, poured = now, now, 0, 0, 0
    end
  end
  level, poured = level + units, poured + units
  if (rest > 0 and level + 1 or level) > limit or poured > MAX_POURED then
    return
  end
  local following = quota.following
  if following then
    return generation, time, level, rest, poured, limit, following.step(following, units, ...)
  end
  return generation, time, level, rest, poured, limit
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, nil, prepare, string.byte('g'), FORMAT, LENGTH, step
