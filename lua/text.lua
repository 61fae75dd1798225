--[[
text: whole numbers as Redis is to have them.

KEYS    none
ARGV    none
reply   text
calls   none
server  any
]]

local format = string.format

-- A whole number with all its digits: tostring keeps 14 of them, and Redis 7.2.0 to 7.2.4 write
-- 100000000 as 1e+08. What an integer of a 32-bit server holds is written as one, in a third of the time.
return function(number)
  return format(number < 2147483648 and '%d' or '%.0f', number)
end
