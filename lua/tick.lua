--[[
tick: whole numbers that stay exact, though Lua's are doubles. Time is multiplied by units in ticks,
the smallest power of ten of microseconds for which the product stays below 2^53. Twin of
src/algorithm/arithmetic.rs.

KEYS    none
ARGV    none
reply   tick_of
calls   none
server  any

Below 2^53 a quotient is never rounded up or down to a whole number that it is not, so its floor and
ceil are exact. In Lua 5.4 it is a float, which they make an integer again.
]]

-- The tick, in microseconds, in which so many units times a window is exact.
return function(units, window)
  local tick = 1
  -- As a float in Lua 5.4 too, whose integers would wrap.
  while 1.0 * units * math.ceil(window / tick) >= 9007199254740992 do
    tick = tick * 10
  end
  return tick
end
