--[[
counters_refund: gives back units of counters, credits them, or forgets counters, for refund.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, and what was charged
reply   the new value; '' if nothing is left; false if nothing changes
calls   as counters
server  Redis 6.0

What is left is written as it was stored, with the generation it has: other charges can still be given back. A counter that
is later than now, after a step back of the clock, has its units elsewhere, so no charge is found; a credit works all the same.
]]

-- By algorithm: `take(quota, row, at, settled, charged)` gives back units of a charge, and returns whether any still counted;
-- `credit(quota, row, at, settled, units)` takes fewer units than count. `settled` is the row as of now.
local takes, credits = {}, {}

-- Opens the row of a key, and changes each counter of a list. Returns the new value, if a counter has changed.
local function change_each(list, number, change)
  if list.problem or not open(list, number) then
    return nil, list.problem or WRONG_TYPE
  elseif not text then
    return false
  end
  local quota, settled, has_changed, is_left = list, { spread(row, 1, layout.last) }, false, false
  repeat
    if not quota.is_view then
      local used, is_ahead = quota.settle(quota, settled, quota.at)
      has_changed = change(quota, quota.at, settled, used, is_ahead) or has_changed
    end
    quota = quota.next
  until not quota
  for _, at in pairs(layout.starts) do
    is_left = is_left or row[at] > 0
  end
  local numbers = has_changed and pack(layout.numbers, spread(row, 3, layout.last))
  return numbers and (is_left and pack('>I4', row[1]) .. row[2] .. numbers .. holes or '')
end

local function clear(quota, at)
  local has_changed = row[at] > 0
  for index = 0, NUMBERS[sub(quota.header, 1, 1)] - 1 do
    row[at + index] = 0
  end
  holes = select(2, split_holes(quota.header))
  return has_changed
end

local function refund_counters(list, number, charged)
  return change_each(list, number, function(quota, at, settled, used, is_ahead)
    return used > 0 and not is_ahead and row[at] == quota.generation
      and takes[quota.algorithm](quota, row, at, settled, charged)
  end)
end

local function credit_counters(list, number, charged)
  return change_each(list, number, function(quota, at, settled, used, is_ahead)
    if charged.units >= used then
      return used > 0 and clear(quota, at)
    end
    credits[quota.algorithm](quota, row, at, settled, charged.units, is_ahead)
    return charged.units > 0
  end)
end

-- Works without the window of a calendar, too.
local function reset_counters(list, number)
  list.problem = not list.at and list.problem or nil
  return change_each(list, number, clear)
end

-- The counts of windows stand one after the other, the newest window's last.
takes.fixed_window = function(quota, counters, at, _, charged)
  local place = at + quota.count - (counters[at + 1] - quota.position)
  if place < at + 2 or place > at + quota.count then
    return false
  end
  counters[place] = max(counters[place] - charged.units, 0)
  return true
end

credits.fixed_window = function(_, counters, at, _, units)
  counters[at + 2] = counters[at + 2] - units
end

takes.total = function(_, counters, at, _, charged)
  counters[at + 1] = max(counters[at + 1] - charged.units, 0)
  return true
end

credits.total = function(_, counters, at, _, units)
  counters[at + 1] = counters[at + 1] - units
end

takes.calendar_window, takes.sliding_counter, credits.calendar_window = takes.fixed_window, takes.fixed_window, credits.fixed_window

-- Takes the units of this window first, which would count longest, and then as few of the previous one as needed.
credits.sliding_counter = function(quota, counters, at, settled, units, is_ahead)
  if is_ahead then
    local taken = min(counters[at + 3], units)
    counters[at + 3], counters[at + 2] = counters[at + 3] - taken, max(counters[at + 2] - units + taken, 0)
    return
  end
  local previous, count = settled[at + 2], settled[at + 3]
  if units <= count then
    counters[at + 3] = counters[at + 3] - units
    return
  end
  local tick, window = scale(max(previous, count, quota.limit), quota.window)
  local target = quota.settle(quota, settled, at) - units
  local most = min(max(floor(target * window / ceil(quota.remaining / tick)), target), previous)
  if counters[at + 1] < quota.current then
    -- This window of the row has become the previous one.
    counters[at + 3] = most
  else
    counters[at + 2], counters[at + 3] = most, 0
  end
end

changes_of.counters = { refund = refund_counters, credit = credit_counters, reset = reset_counters }
