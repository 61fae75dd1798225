--[[
gcra_refund: gives back units of a gcra, or credits them, for refund. Twin of src/algorithm/gcra/holes.rs.

KEYS    none
ARGV    none; the caller passes a quota, a row with the place of a counter in it, and what was charged
reply   as counters_refund
calls   none
server  Redis 6.0

Units drain in the order in which they flowed in. The position of a charge is the inflow up to and with it: of 3 charges of 2 units,
at 2, 4 and 6, with a level of 3, the first has drained, and 1 unit of the second is left. So a refund of the second gives back 1. If
2 units of the third were given back before, the level is 1 and all that is left is the second's: the hole from 4 to 6 of 2
units tells it.

A hole is adjacent charges of which units were given back: the window of the counter 6, the position where the first of them
starts 4; that where the last ends 4, or one less while more of that charge may be given back; the units that were given
back 4.
]]

-- Merges a hole with the next one.
local function merge(list, index)
  local following = table.remove(list, index + 1)
  list[index][2], list[index][3] = following[2], list[index][3] + following[3]
end

-- Adds units of one charge that were given back.
local function add_hole(list, first, stop, units, is_open)
  local index, till, fewest = 1, is_open and stop - 1 or stop, 1
  while list[index] and list[index][2] <= first do
    index = index + 1
  end
  if list[index] and list[index][1] < stop then
    -- Part of the charge was given back before.
    list[index][2], list[index][3] = max(list[index][2], till), list[index][3] + units
  else
    table.insert(list, index, { first, till, units })
  end
  for at = index, max(index - 1, 1), -1 do
    if list[at + 1] and list[at][2] == list[at + 1][1] then
      merge(list, at)
    end
  end
  -- At most 32, so that a row stays short.
  if #list > 32 then
    for at = 2, #list - 1 do
      if list[at][3] + list[at + 1][3] < list[fewest][3] + list[fewest + 1][3] then
        fewest = at
      end
    end
    merge(list, fewest)
  end
end

-- Drops the holes before which all units have drained.
local function drop_drained(list, inflow, level)
  local given_back = 0
  for index = #list, 1, -1 do
    given_back = given_back + list[index][3]
    if level < max(inflow - list[index][1] - given_back, 0) then
      for _ = 1, index do
        table.remove(list, 1)
      end
      return
    end
  end
end

-- Returns a level less so many units and parts of a unit, in units and parts; or 0 if it is lower. And the tick.
local function lowered(quota, counters, at, units, parts)
  local tick, whole = rate_of(quota, counters, at)
  local rest = ceil(counters[at + 3] / tick) - parts
  local level = counters[at + 2] - units + floor(rest / whole)
  return max(level, 0), level < 0 and 0 or rest % whole, tick
end

-- Lowers a level by units and parts.
local function lower(quota, counters, at, units, parts)
  local level, rest, tick = lowered(quota, counters, at, units, parts)
  counters[at + 2], counters[at + 3] = level, rest * tick
end

-- Units drain in the order in which they flowed in: at most the level, less what flowed in later, is left of a charge.
takes.gcra = function(quota, counters, at, settled, charged)
  local stop, inflow, given_back, list, others = quota.position, counters[at + 4], 0, split_holes(quota.header)
  if stop > inflow then
    -- The charge is of another generation, which began in the same microsecond.
    return false
  end
  for index = #list, 1, -1 do
    if list[index][1] < stop then
      break
    end
    given_back = given_back + list[index][3]
  end
  local taken, parts = lowered(quota, settled, at, max(inflow - stop - given_back, 0), 0)
  if taken >= charged.units then
    taken, parts = charged.units, 0
  end
  if taken + parts == 0 then
    return false
  end
  lower(quota, counters, at, taken, parts)
  if taken > 0 then
    add_hole(list, max(stop - charged.cost, 0), stop, taken, charged.refundable > 0)
    drop_drained(list, inflow, counters[at + 2])
    for index = 1, #list do
      others = others .. sub(quota.header, 2) .. pack('>I4I4I4', spread(list[index]))
    end
    holes = others
  end
  return true
end

-- Takes the oldest units, which would drain next.
credits.gcra = function(quota, counters, at, _, units)
  lower(quota, counters, at, units, 0)
end
