--[[
arithmetic: whole numbers that stay exact, though Lua's are doubles. Time is multiplied by units in
ticks, the smallest power of ten of microseconds for which the product stays below 2^53.

KEYS    none
ARGV    none
reply   none; defines div_down, div_up, tick_of, aligned, text, time_to_live
calls   none
server  any
]]

local EXACT = 9007199254740992

-- math.fmod is exact where a quotient would be rounded.
local function div_down(dividend, divisor)
  return (dividend - math.fmod(dividend, divisor)) / divisor
end

local function div_up(dividend, divisor)
  local quotient = div_down(dividend, divisor)
  return quotient * divisor < dividend and quotient + 1 or quotient
end

-- The tick, in microseconds, in which so many units times a window is exact.
local function tick_of(units, window)
  local tick = 1
  while units * div_up(window, tick) >= EXACT do
    tick = tick * 10
  end
  return tick
end

-- The window of time that `time` is in, counted from the epoch, and how long until the next begins.
local function aligned(time, window)
  return div_down(time, window), window - math.fmod(time, window)
end

-- A whole number with all its digits: tostring keeps 14 of them, and Redis 7.2.0 to 7.2.4 write
-- 100000000 as 1e+08.
local function text(number)
  return string.format('%.0f', number)
end

-- How long a count is kept after it was last renewed, in milliseconds, as text. A log without a trim
-- may grow for one window and then counts for another. The second more keeps brief windows from being
-- at the mercy of a millisecond.
local function time_to_live(window)
  return text(math.ceil(2 * window / 1000) + 1000)
end
