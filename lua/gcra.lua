--[[
gcra: the generic cell rate algorithm, as a leaky bucket: charged units flow in, and drain evenly at the
limit per window. The level may rise to the limit. Counts in whole fractions of a unit, so that nothing
drifts where the limit does not divide the window. Twin of src/algorithm/gcra/gcra.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code
calls   none
server  Redis 5.0

Stored: the generation; a time; the level in whole units at that time; the rest of the level, in units times
microseconds, where a whole unit is a window; the units that flowed in since the level was last 0 or this
number overflowed; the rate at which the level drains, which is the limit of the last charge. Then three
numbers for each hole.
]]

local unpack, pack = struct.unpack, struct.pack
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
    local generation, time, level, rest, poured, rate = unpack('>ddI4dI4I4', data)
    local numbers = { time, level, rest, poured, rate }
    for at = 37, #data, 4 do
      numbers[#numbers + 1] = (unpack('>I4', data, at))
    end
    return numbers, generation
  end,

  format = function(numbers, generation)
    local parts = {
      pack('>ddI4dI4I4', generation, numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]),
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

-- Charges a quota of which nothing unusual is stored: no holes, and the limit of the last charge is the same.
-- Returns the new data, or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local limit, tick, whole = quota.limit, quota.tick, quota.whole
  local generation, time, units, rest, poured = now, now, 0, 0, 0
  if stored then
    if to - from ~= 35 then
      return
    end
    local began, since, level, part, flowed, rate = unpack('>ddI4dI4I4', stored, from)
    if since > now or rate ~= limit then
      return
    end
    local passed = now - since
    if tick > 1 then
      part, passed = ceil(part / tick), floor(passed / tick)
    end
    level = level * whole + part - passed * limit
    if level > 0 then
      rest = level % whole
      units, generation, time, poured = (level - rest) / whole, began, since + passed * tick, flowed
    end
  end
  local used, charged = rest > 0 and units + 1 or units, cost * count
  if used + charged > limit or poured + charged > MAX_POURED then
    return
  end
  -- The rest of a unit has to drain, or else a whole one.
  local reset = ceil((rest > 0 and rest or whole) / limit) * tick - (now - time)
  for _ = 1, count do
    used, poured = used + cost, poured + cost
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = used, reset, generation, poured
    size = size + 4
  end
  return pack('>ddI4dI4I4', generation, time, units + charged, rest * tick, poured, limit), size
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, attempt, prepare, string.byte('g')
