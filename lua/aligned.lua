--[[
aligned: windows that begin at multiples of their length since the epoch.

KEYS    none
ARGV    none
reply   prepare
calls   none
server  any
]]

-- Adds to a quota the number of the current window and the microseconds until the next one.
return function(quota)
  local window = quota.window
  local current = math.floor(now / window)
  quota.current, quota.left = current, (current + 1) * window - now
end
