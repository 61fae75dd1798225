--[[
gcra: the generic cell rate algorithm, as a leaky bucket. Charged units flow in, and drain evenly at the limit per window. The
level may rise to the limit; a charge beyond it raises it to at most what drains in 1 000 windows. Twin of
src/algorithm/gcra/gcra.rs.

KEYS    none
ARGV    none; the caller passes a quota, and a row with the place of a counter in it
reply   none
calls   none
server  Redis 6.0

Numbers: a time 8; the level at that time, in whole units 4 and a rest 8; the units that flowed in since the level was last 0,
or this number overflowed, 4; the rate at which the level drains, which is the limit of the last charge, 4. A charge beyond the
limit never lowers the rate.

A unit has as many parts as its window has microseconds, so in each microsecond `rate` parts drain, and all numbers are whole. The
rest is in parts. With 5 units in 10 seconds, 1 unit that was charged 3 seconds ago is 10 000 000 - 5 x 3 000 000 < 0 parts: none.
2 units charged 3 seconds ago are 5 000 000 parts: level 0, rest 5 000 000, which is counted as 1 unit.
]]

-- Returns the tick of a counter, the parts of a whole unit, and the parts that drain in a tick.
local function rate_of(quota, counters, at)
  local rate = max(counters[at + 5], 1)
  if rate ~= quota.rate then
    local tick = scale(rate, quota.window)
    quota.rate, quota.tick, quota.whole = rate, tick, ceil(quota.window / tick)
  end
  return quota.tick, quota.whole, rate
end

local function settle_level(quota, counters, at)
  local tick, whole, rate = rate_of(quota, counters, at)
  local is_ahead = counters[at + 1] > now
  if is_ahead then
    counters[at], counters[at + 1] = now, now
  end
  local passed = floor((now - counters[at + 1]) / tick)
  -- Whole windows apart: the parts of a level above the rate may be 2^53 or more.
  local drained = passed % whole * rate
  local parts = ceil(counters[at + 3] / tick) - drained % whole
  local level, rest = counters[at + 2] - floor(passed / whole) * rate - floor(drained / whole) + floor(parts / whole), parts % whole
  if level < 0 or level + rest == 0 then
    counters[at + 1], counters[at + 2], counters[at + 3], counters[at + 4], counters[at + 5] = now, 0, 0, 0, 0
    return 0, is_ahead
  end
  -- The time is the last whole tick: the rest of a tick is not lost.
  counters[at + 1] = counters[at + 1] + passed * tick
  counters[at + 2], counters[at + 3] = level, rest * tick
  return level + (rest > 0 and 1 or 0), is_ahead
end

-- Notes the rate and what flowed in on a level of `before`, or as much of it as drains in 1 000 windows. Returns whether that
-- begins a generation, and how long the level takes to drain.
local function note_inflow(quota, counters, at, before)
  local level, rate, rest = counters[at + 2], quota.limit, counters[at + 3] > 0 and 1 or 0
  if level + rest > rate then
    rate = max(rate, counters[at + 5])
    level = min(level, max(1000 * max(rate, 1), before))
  end
  local units = level - before
  local begins = counters[at + 4] + units > 4294967295
  counters[at + 2], counters[at + 4], counters[at + 5] = level, begins and units or counters[at + 4] + units, rate
  return begins, ceil((level + rest) / max(rate, 1)) * quota.window
end

rules.gcra = function(quota)
  -- A level drains in whole ticks, each below a hundred-thousandth of the window.
  quota.settle, quota.count, quota.note, quota.needs = settle_level, 2, note_inflow, quota.window + floor(quota.window / 100000)
end
