--[[
parse_numbers: parses a text of whole numbers that may be too long for one pattern.

KEYS    none
ARGV    none; the caller passes the text, the fewest numbers, and how many each further group has
reply   parse_numbers
calls   none
server  any
]]

-- Returns the numbers of a text, as texts; an empty list if the text holds anything else.
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
