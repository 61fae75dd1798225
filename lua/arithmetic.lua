--[[
arithmetic: products that stay exact in the doubles of Lua, below 2^53. Time that is multiplied by units is counted in ticks:
the smallest power of ten of microseconds for which the product is exact. Twin of src/algorithm/arithmetic.rs.

KEYS    none
ARGV    none
reply   none; defines `scale`
calls   none
server  any

Below 2^53, a quotient never rounds to a whole number that it is not, so its floor and ceil are exact.
]]

-- Returns the tick, in microseconds, in which units times a window is exact, and the ticks of the window, rounded down.
local function scale(units, window)
  local tick = 1
  -- 1.0 makes it a float in Lua 5.4 too, whose integers would wrap.
  while 1.0 * units * math.ceil(window / tick) >= 9007199254740992 do
    tick = tick * 10
  end
  return tick, floor(window / tick)
end
