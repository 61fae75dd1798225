--[[
arithmetic: products that stay exact in the doubles of Lua. Time that is multiplied by units is counted
in ticks: the smallest power of ten of microseconds for which the product stays below 2^53. Twin of
src/algorithm/arithmetic.rs.

KEYS    none
ARGV    none
reply   tick_of
calls   none
server  any

Below 2^53 a quotient never rounds to a whole number that it is not, so its floor and ceil are exact.
In Lua 5.4 it is a float, which floor and ceil turn into an integer.
]]

-- Returns the tick, in microseconds, in which units times a window is exact.
return function(units, window)
  local tick = 1
  -- 1.0 makes it a float in Lua 5.4 too, whose integers would wrap.
  while 1.0 * units * math.ceil(window / tick) >= 9007199254740992 do
    tick = tick * 10
  end
  return tick
end
