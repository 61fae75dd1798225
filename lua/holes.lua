--[[
holes: the units of a gcra that were given back, by their position among all that flowed in. Twin of
src/algorithm/gcra/holes.rs, which says what they are for.

KEYS    none
ARGV    none; the caller passes the numbers of a gcra
reply   a table of functions of the numbers
calls   none
server  any

A hole is three numbers behind the five of the gcra, oldest first: the position where its first charge
starts; the position where its last charge ends, or one less while more of that charge may be given back;
the units that were given back.
]]

-- The index of the first hole, and the most numbers that holes may have.
local FIRST, MAX = 6, 3 * 32

-- Returns how many of the units that flowed in after a position were given back.
local function after(numbers, position)
  local sum = 0
  for at = #numbers - 2, FIRST, -3 do
    if numbers[at] < position then
      break
    end
    sum = sum + numbers[at + 2]
  end
  return sum
end

-- Merges a hole with the next one.
local function merge(numbers, at)
  if at >= FIRST and numbers[at + 3] then
    numbers[at + 1], numbers[at + 2] = numbers[at + 4], numbers[at + 2] + numbers[at + 5]
    for _ = 1, 3 do
      table.remove(numbers, at + 3)
    end
  end
end

-- The same, if the next hole starts where this one ends; the end of an open charge is one less.
local function join(numbers, at)
  if at >= FIRST and numbers[at + 1] == numbers[at + 3] then
    merge(numbers, at)
  end
end

-- Returns the first of the two neighbours that have the fewest units together.
local function smallest_pair(numbers)
  local smallest, fewest = FIRST, nil
  for at = FIRST, #numbers - 5, 3 do
    local units = numbers[at + 2] + numbers[at + 5]
    if not fewest or units < fewest then
      smallest, fewest = at, units
    end
  end
  return smallest
end

-- Adds units of one charge that were given back; `is_open` says whether more of them may be.
local function add(numbers, first, last, units, is_open)
  local at, till = FIRST, is_open and last - 1 or last
  while numbers[at] and numbers[at + 1] <= first do
    at = at + 3
  end
  if numbers[at] and numbers[at] < last then
    -- Part of the charge was given back before.
    numbers[at + 1], numbers[at + 2] = math.max(numbers[at + 1], till), numbers[at + 2] + units
  else
    table.insert(numbers, at, units)
    table.insert(numbers, at, till)
    table.insert(numbers, at, first)
  end
  join(numbers, at)
  join(numbers, at - 3)
  if #numbers >= FIRST + MAX then
    merge(numbers, smallest_pair(numbers))
  end
end

-- Forgets the holes before which all units have drained, of a level in whole units.
local function forget_drained(numbers, level)
  local at, given_back = #numbers - 2, 0
  while at >= FIRST do
    given_back = given_back + numbers[at + 2]
    if level < numbers[4] - numbers[at] - given_back then
      break
    end
    at = at - 3
  end
  for _ = FIRST, at + 2 do
    table.remove(numbers, FIRST)
  end
end

return { after = after, add = add, forget_drained = forget_drained }
