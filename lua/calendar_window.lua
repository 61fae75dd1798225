--[[
calendar_window: one count for each day, week or month of a time zone. The rule of fixed_window, with windows that the
client computes. Twin of src/algorithm/fixed_window.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, nil, prepare, code, format, length, step
calls   none
server  Redis 5.0

`starts` of the quota is the number that stands for the window, in six bytes; then, in four bytes each, the number of the
first window that the client knows, and the seconds since 1970 at which six windows begin. The window is the one that
the time of the server is in. If the client knows no window for that time, because its clock is wrong by more than a
window, no entry of the quota is decided: the error has the time, and the client sends windows around it.

Zones share a count, and their dates differ by up to two: 26 hours are between the time zones. So a count may be of the
window after the next one, and stays there.
]]

local make_ops, _, _, code, format, length, step = require('fixed_window')

local function fail()
  error('NOWINDOW ' .. now_text, 0)
end

-- The operations of a quota of which the window is not known. A count can be forgotten.
local function make_failing_ops()
  local ops = make_ops()
  ops.judge, ops.refund, ops.credit = fail, fail, fail
  return ops
end

local function prepare(quota)
  local index, first, second, third, fourth, fifth, sixth =
    struct.unpack('>I4I4I4I4I4I4I4', quota.starts, 7)
  local start, stop, next_stop, last_stop
  local second_now = now / 1000000
  if second_now < second then
    start, stop, next_stop, last_stop = first, second, third, fourth
  elseif second_now < third then
    index, start, stop, next_stop, last_stop = index + 1, second, third, fourth, fifth
  else
    index, start, stop, next_stop, last_stop = index + 2, third, fourth, fifth, sixth
  end
  if second_now < start or second_now >= stop then
    quota.current, quota.last, quota.left = math.huge, math.huge, 0
    quota.step, quota.make_ops = nil, make_failing_ops
    return
  end
  quota.current, quota.last = index, index + 2
  quota.left, quota.next_left = stop * 1000000 - now, next_stop * 1000000 - now
  -- Longer than the time to live: each charge renews it.
  quota.needs = last_stop * 1000000 - now
end

return make_ops, nil, prepare, code, format, length, step
