--[[
decide: decides the entries that a loop has left, or all, one after the other. The end of every script of checks.

KEYS    as call
ARGV    as call
reply   entry: how many checks are admitted, or the text of an error; if `more` is not 0, the units that are charged; 0 of a
reply   charge
reply   then, if units are charged, the reply of each level to its charge; if a check is refused or costs 0, to that
reply   in front of these, of a level that is soft: how many checks it has room for
calls   as the kinds of values
server  Redis 6.0

A level of cost 0 replies as to a refusal, and so does a charge, with the units that are left then. In a group that
`is_shared`, each value replies once to all its charges: behind the entries, in the order of the numbers.
]]

-- The values of a group that shares them, by number: the list, the units that are left, those to charge, and the reply to the
-- last charge, if there was one.
local shared = {}

-- Drops the end of the reply.
local function drop(before)
  while size > before do
    reply[size], size = nil, size - 1
  end
end

-- Charges what is due to a shared value, and keeps the reply.
local function settle(number)
  local value, before = shared[number], size
  if value.units > 0 then
    value.list.room(value.list, number)
    value.list.charge(value.list, number, value.units)
    value.units, value.reply = 0, { spread(reply, before + 1, size) }
    drop(before)
  end
end

-- Decides an entry.
local function decide(levels, count, more, eighths, is_shared)
  local is_charge, depth, least = count == 0, #levels, 4294967296
  local admitted = is_charge and 1 or count
  for index = 1, depth do
    local level = levels[index]
    local list, number, cost, value = level.list, level.number, level.cost, shared[level.number]
    local left, problem = value and value.left, nil
    if not value then
      left, problem = list.room(list, number)
      if not left then
        size = size + 1
        reply[size] = problem
        return
      elseif is_shared then
        shared[number] = { list = list, left = left, units = 0, reply = {} }
      end
    end
    if list.is_soft then
      level.left = left
    elseif not is_charge then
      if cost * admitted > left then
        admitted = left < cost and 0 or floor(left / cost)
      end
      least = left - cost < least and left - cost or least
    end
  end
  -- A process that wants more leaves a part of what is left to others, unless it had the whole limit. Several counts of one
  -- check have the same cost.
  local charged = admitted * levels[1].cost
  local beyond = more > 0 and charged > 0 and floor(min(8 * more, eighths * least) / 8) or 0
  size = size + 1
  reply[size] = more > 0 and charged + beyond or min(admitted, count)
  for index = 1, depth do
    local level = levels[index]
    local list, number, cost, value = level.list, level.number, level.cost, shared[level.number]
    local fitting = admitted
    if list.is_soft then
      if cost * fitting > level.left and not is_charge then
        fitting = level.left < cost and 0 or floor(level.left / cost)
      end
      size = size + 1
      reply[size] = min(fitting, count)
    end
    local units, before = cost * fitting + beyond, size
    if value then
      value.left, value.units = value.left - units, value.units + units
    elseif units > 0 then
      if depth > 1 then
        list.room(list, number)
      end
      list.charge(list, number, units)
      if is_charge then
        drop(before)
      end
    end
    if fitting < count or cost == 0 or is_charge then
      if value then
        settle(number)
      end
      if value or units > 0 or depth > 1 then
        list.room(list, number)
      end
      list.refuse(list, number, is_charge and 0 or cost)
    end
  end
end

-- Decides the entry of a group that has the key of this number, or with 0 all its entries.
local function decide_group(lists, at, only)
  local levels, depth, keys = {}, args[at + 6], at + 8 + 2 * args[at + 6]
  for index = 1, depth do
    local from = at + 6 + 2 * index
    levels[index] = { list = lists[args[from]], cost = args[from + 1], number = only }
  end
  for entry = 0, only > 0 and 0 or args[at + 2] - 1 do
    for index = 1, only > 0 and 0 or depth do
      levels[index].number = depth > 1 and args[keys + entry * depth + index - 1] or args[keys] + entry
    end
    decide(levels, args[at + 3], args[at + 4], args[at + 5], args[at + 7] > 0)
  end
  if next(shared) then
    local numbers = {}
    for number in pairs(shared) do
      numbers[#numbers + 1] = number
    end
    table.sort(numbers)
    for index = 1, #numbers do
      settle(numbers[index])
      for _, item in ipairs(shared[numbers[index]].reply) do
        size = size + 1
        reply[size] = item
      end
    end
    shared = {}
  end
end

local lists = read_lists(4, args[2])
if leftover then
  for index = 1, #leftover, 2 do
    decide_group(lists, leftover[index], leftover[index + 1])
  end
else
  local at = args[2]
  while args[at] do
    decide_group(lists, at, 0)
    at = at + args[at + 1]
  end
end
return cmsgpack.pack(reply)
