--[[
fixed_window: one count for each aligned window, or for each day, week or month of a time zone. Twin of
src/algorithm/fixed_window.rs.

KEYS    none
ARGV    none; the caller passes a quota, and a row with the place of a counter in it
reply   none
calls   none
server  Redis 6.0

Numbers: the window 8, its count 4. After a step back of the clock, the count stays until the `last` window has ended that a
count may be of: the next one. In a calendar it is the window after it, since zones share a count, and their dates differ
by up to two: 26 hours are between the time zones.

The `window` of a calendar is, in four bytes each, the number of the first window that the client knows, and the seconds since
1970 at which six windows begin. If the time is in none of those with two others behind them, because the clock of the client
is wrong by more than a window, the entry fails with that time, and the client sends the windows around it.
]]

local function settle_window(quota, counters, at)
  local counting, is_ahead = counters[at + 1], counters[at + 1] > quota.last
  if is_ahead then
    counters[at], counters[at + 1] = now, quota.last
  elseif counting < quota.current then
    counters[at + 1], counters[at + 2] = quota.current, 0
  end
  return counters[at + 2], is_ahead
end

rules.fixed_window = function(quota)
  local window = quota.window
  quota.settle, quota.count, quota.current = settle_window, 2, floor(now / window)
  quota.last, quota.needs = quota.current + 1, (quota.current + 2) * window - now
end

rules.calendar_window = function(quota)
  local starts = { unpack('>I4I4I4I4I4I4I4', quota.window) }
  quota.settle, quota.count, quota.current, quota.last, quota.problem = settle_window, 2, 0, 0, 'NOWINDOW ' .. now_text
  for place = 2, 4 do
    if now >= starts[place] * 1000000 and now < starts[place + 1] * 1000000 then
      quota.current, quota.problem = starts[1] + place - 2, nil
      -- Longer than the time to live: each charge renews it.
      quota.last, quota.needs = quota.current + 2, starts[place + 3] * 1000000 - now
    end
  end
end
