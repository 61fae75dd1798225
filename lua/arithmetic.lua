--[[
arithmetic: whole numbers that stay exact, though Lua's are doubles. Time is multiplied by units in
ticks, the smallest power of ten of microseconds for which the product stays below 2^53.

KEYS    none
ARGV    none
reply   none; defines div_down, div_up, tick_of, aligned, text, time_to_live
calls   none
server  any
]]

local floor, ceil = math.floor, math.ceil

local EXACT = 9007199254740992

-- Below 2^53 a quotient is never rounded up or down to a whole number that it is not. In Lua 5.4 it is
-- a float, which floor and ceil make an integer again.
local function div_down(dividend, divisor)
  return floor(dividend / divisor)
end

local function div_up(dividend, divisor)
  return ceil(dividend / divisor)
end

-- The tick, in microseconds, in which so many units times a window is exact.
local function tick_of(units, window)
  local tick = 1
  -- As a float in Lua 5.4 too, whose integers would wrap.
  while 1.0 * units * div_up(window, tick) >= EXACT do
    tick = tick * 10
  end
  return tick
end

-- The window of time that `time` is in, counted from the epoch, and how long until the next begins.
local function aligned(time, window)
  local index = floor(time / window)
  return index, (index + 1) * window - time
end

-- A whole number with all its digits: tostring keeps 14 of them, and Redis 7.2.0 to 7.2.4 write
-- 100000000 as 1e+08. Remembered, because it takes as long as a command does.
local text
do
  local format, texts = string.format, {}

  function text(number)
    local digits = texts[number]
    if not digits then
      digits = format('%.0f', number)
      texts[number] = digits
    end
    return digits
  end
end

-- How long a count is kept after it was last renewed, in milliseconds, as text. A log without a trim
-- may grow for one window and then counts for another. The second more keeps brief windows from being
-- at the mercy of a millisecond.
local function time_to_live(window)
  return text(ceil(2 * window / 1000) + 1000)
end
