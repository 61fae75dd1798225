--[[
counters_refund: gives back units of counters, credits them, or forgets counters, for refund.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, and what was charged
reply   the new value; '' if nothing is left; false if nothing changes
calls   those of counters
server  Redis 6.0

What is left is written as of now, with the generation it has, so that other charges can still be given back.
]]

-- By algorithm: `take(quota, counters, at, charged)` gives back units of a charge, and returns whether any still counted;
-- `credit(quota, counters, at, units)` takes fewer units than count.
local takes, credits = {}, {}

-- Changes the counters of a list, and returns the new value, if one has changed.
local function change_each(list, number, change)
  local quota, has_changed, is_left = list, false, false
  repeat
    has_changed = not quota.is_view and change(quota, quota.at) or has_changed
    quota = quota.next
  until not quota
  for _, at in pairs(layout.starts) do
    is_left = is_left or row[at] > 0
  end
  if not has_changed then
    return false
  end
  return is_left and pack('>I4', row[1]) .. row[2] .. pack(layout.numbers, spread(row, 3, layout.last)) .. holes or ''
end

local function clear(quota, at)
  local has_changed = row[at] > 0
  for index = 0, NUMBERS[sub(quota.header, 1, 1)] - 1 do
    row[at + index] = 0
  end
  remove_holes(quota.header)
  return has_changed
end

local function refund_counters(list, number, charged)
  local left, problem = list.room(list, number)
  return left and text and change_each(list, number, function(quota, at)
    return quota.used > 0 and row[at] == quota.generation and takes[quota.algorithm](quota, row, at, charged)
  end), problem
end

local function credit_counters(list, number, charged)
  local left, problem = list.room(list, number)
  return left and text and change_each(list, number, function(quota, at)
    if charged.units >= quota.used then
      return quota.used > 0 and clear(quota, at)
    end
    credits[quota.algorithm](quota, row, at, charged.units)
    return charged.units > 0
  end), problem
end

local function reset_counters(list, number)
  if not open(list, number) then
    return nil, WRONG_TYPE
  end
  return text and change_each(list, number, clear)
end

takes.fixed_window = function(quota, counters, at, charged)
  local counts = counters[at + 1] == quota.position
  counters[at + 2] = counts and math.max(counters[at + 2] - charged.units, 0) or counters[at + 2]
  return counts
end

credits.fixed_window = function(_, counters, at, units)
  counters[at + 2] = counters[at + 2] - units
end

takes.calendar_window, credits.calendar_window = takes.fixed_window, credits.fixed_window

takes.sliding_counter = function(quota, counters, at, charged)
  local place = at + 3 - (counters[at + 1] - quota.position)
  local counts = place == at + 2 or place == at + 3
  if counts then
    counters[place] = math.max(counters[place] - charged.units, 0)
  end
  return counts
end

-- Takes the units of this window first, which would count longest, and then as few of the previous one as needed.
credits.sliding_counter = function(quota, counters, at, units)
  local previous, count = counters[at + 2], counters[at + 3]
  if units <= count then
    counters[at + 3] = count - units
    return
  end
  local tick, window = scale(math.max(previous, count, quota.limit), quota.window)
  local target = quota.used - units
  local most = floor(target * window / math.ceil(quota.remaining / tick))
  counters[at + 2], counters[at + 3] = math.min(math.max(most, target), previous), 0
end

local prepare_counters = kinds.counters
kinds.counters = function(list)
  prepare_counters(list)
  list.refund, list.credit, list.reset = refund_counters, credit_counters, reset_counters
end
