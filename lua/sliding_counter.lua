--[[
sliding_counter: the estimated sliding window. Counts this aligned window in full, and the previous one by the part that a
window ending now still overlaps, rounded up. Twin of src/algorithm/sliding_counter.rs.

KEYS    none
ARGV    none; the caller passes a quota, and a row with the place of a counter in it
reply   none
calls   none
server  Redis 6.0

Numbers: the window 8, the count of the previous window 4, its own count 4.
]]

local function settle_counter(quota, counters, at)
  local counting, previous, count = counters[at + 1], counters[at + 2], counters[at + 3]
  local current, is_ahead = quota.current, counting > quota.current
  if counting ~= current then
    if is_ahead then
      -- After a step back of the clock, both windows overlap the sliding window in full.
      counters[at], previous, count = now, 0, min(previous + count, 4294967295)
    else
      previous, count = counting == current - 1 and count or 0, 0
    end
    counters[at + 1], counters[at + 2], counters[at + 3] = current, previous, count
  end
  if previous == 0 then
    return count, is_ahead
  end
  local tick, window = scale(max(previous, count, quota.limit), quota.window)
  local part = ceil(previous * ceil(quota.remaining / tick) / window)
  return count + min(part, previous), is_ahead
end

rules.sliding_counter = function(quota)
  local window = quota.window
  quota.settle, quota.count, quota.current = settle_counter, 3, floor(now / window)
  quota.remaining = (quota.current + 1) * window - now
  quota.needs = quota.remaining + window
end
