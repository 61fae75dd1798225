--[[
numbers: reads a text of whole numbers that may be long.

KEYS    none
ARGV    none; is given the text, how many numbers it has at least, and how many follow at a time
reply   numbers_in
calls   none
server  any
]]

-- The numbers in a text, as texts; none where it holds anything else.
return function(stored, base, group)
  local numbers = {}
  if string.find(stored, '^[%d ]+$') then
    for digits in string.gmatch(stored, '%d+') do
      numbers[#numbers + 1] = digits
    end
  end
  local more = #numbers - base
  return more >= 0 and more % group == 0 and numbers or {}
end
