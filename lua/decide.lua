--[[
decide: decides the entries that a loop has left, or all, one after the other. The end of every script of checks.

KEYS    those of call
ARGV    those of call
reply   entry: how many checks are admitted, or the text of an error; if `more` is not 0, the units that are charged
reply   then, if units are charged, the reply of each level to its charge; if a check is refused or only looks, to that
calls   those of the kinds of values
server  Redis 6.0

A level of cost 0 replies as to a refusal. A shared value replies once to all its charges: behind the entries of the run, in the
order of the numbers.
]]

local function append(item)
  size = size + 1
  reply[size] = item
end

-- Returns how many of the checks there is room for.
local function admit(left, cost, count)
  if cost * count <= left then
    return count
  end
  return left < cost and 0 or floor(left / cost)
end

-- Returns the units beyond the cost of a check that may go to a process that wants more: at most an eighth of what is left,
-- so that other processes get units too.
local function extra(more, left)
  return floor(min(8 * more, left) / 8)
end

-- Decides an entry of one level.
local function decide(list, number, cost, count, more)
  local left, problem = list.room(list, number)
  if not left then
    return append(problem)
  end
  local admitted = admit(left, cost, count)
  local units = admitted * cost
  if more > 0 and units > 0 then
    units = units + extra(more, left - units)
  end
  append(more > 0 and units or admitted)
  if units > 0 then
    list.charge(list, number, units)
  end
  if admitted < count or cost == 0 then
    if units > 0 then
      list.room(list, number)
    end
    list.refuse(list, number, cost)
  end
end

-- Of the shared values of a run, by number: the list, the units that are left, those to charge, and the reply to the last
-- charge, if there was one.
local shared = {}

-- Charges what is due to a shared value, and keeps the reply.
local function settle(number)
  local value, before = shared[number], size
  value.list.room(value.list, number)
  if value.units > 0 then
    value.list.charge(value.list, number, value.units)
    value.units, value.reply = 0, { spread(reply, before + 1, size) }
    while size > before do
      reply[size], size = nil, size - 1
    end
  end
end

-- Decides an entry of several levels, whose keys begin at a place.
local function decide_levels(levels, count, more, place)
  local admitted, depth, least = count, #levels, math.huge
  for index = 1, depth do
    local level, number = levels[index], args[place + index - 1]
    local list, value = level.list, shared[number]
    local left, problem = value and value.left, nil
    if not left then
      left, problem = list.room(list, number)
    end
    if not left then
      return append(problem)
    end
    if level.is_shared then
      shared[number] = value or { list = list, left = left, units = 0, reply = {} }
    end
    admitted, least = admit(left, level.cost, admitted), min(least, left - level.cost)
  end
  -- Several counts of one check have the same cost.
  local beyond = more > 0 and admitted > 0 and extra(more, least) or 0
  append(more > 0 and admitted * levels[1].cost + beyond or admitted)
  for index = 1, depth do
    local level, number = levels[index], args[place + index - 1]
    local list, value, units = level.list, shared[number], level.cost * admitted + beyond
    if value then
      value.left, value.units = value.left - units, value.units + units
    elseif units > 0 then
      list.room(list, number)
      list.charge(list, number, units)
    end
    if admitted < count or level.cost == 0 then
      if value then
        settle(number)
      end
      list.room(list, number)
      list.refuse(list, number, level.cost)
    end
  end
end

-- Decides the entry of a run that has the key of this number, or with 0 all its entries.
local function decide_run(lists, at, number)
  local entries, count, more, depth, place = args[at + 2], args[at + 3], args[at + 4], args[at + 5], args[at + 9]
  if depth == 1 then
    local list, cost = lists[args[at + 6]], args[at + 7]
    for key = number > 0 and number or place, number > 0 and number or place + entries - 1 do
      decide(list, key, cost, count, more)
    end
    return
  end
  local levels = {}
  for index = 1, depth do
    local from = at + 3 + 3 * index
    levels[index] = { list = lists[args[from]], cost = args[from + 1], is_shared = args[from + 2] > 0 }
  end
  for first = at + 6 + 3 * depth, at + 5 + 3 * depth + entries * depth, depth do
    decide_levels(levels, count, more, first)
  end
  local numbers = {}
  for key in pairs(shared) do
    numbers[#numbers + 1] = key
  end
  table.sort(numbers)
  for index = 1, #numbers do
    settle(numbers[index])
    for _, item in ipairs(shared[numbers[index]].reply) do
      append(item)
    end
  end
  shared = {}
end

local lists = read_lists(3, args[2])
if left then
  for index = 1, #left, 2 do
    decide_run(lists, left[index], left[index + 1])
  end
else
  local at = args[2]
  while args[at] do
    decide_run(lists, at, 0)
    at = at + args[at + 1]
  end
end
return cmsgpack.pack(reply)
