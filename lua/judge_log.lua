--[[
judge_log: compares the units of a log with a quota, for both logs.

KEYS    none
ARGV    none; the caller passes the function that returns when a unit expires
reply   make_judge
calls   none
server  any
]]

return function(expires_in)
  return function(log, quota, cost)
    local used, limit = log.used, quota.limit
    -- With a limit lowered below what is used, several units expire before one more fits.
    local surplus = used > limit and used - limit or 0
    local reset = used > surplus and expires_in(log, surplus) or 0
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      -- That many units must expire, and they expire in order.
      local last = used + cost - limit - 1
      wait = last == surplus and reset or expires_in(log, last)
    end
    quota.used, quota.wait, quota.reset = used, wait, reset
  end
end
