--[[
aligned: windows that begin at multiples of their length.

KEYS    none
ARGV    none
reply   prepare
calls   none
server  any
]]

-- Which window of a quota it is now, counted from the epoch, and how long until the next begins.
return function(quota)
  local window = quota.window
  local current = math.floor(now / window)
  quota.current, quota.left = current, (current + 1) * window - now
end
