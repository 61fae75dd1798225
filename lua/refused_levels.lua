--[[
refused_levels: replies to entries of several levels that a full value refuses. Nothing is written, so each value is
judged once, however many entries ask it.

KEYS    the keys of the entries
ARGV    none; the caller passes the arguments of the call
reply   a function that takes what the runs of a call share, and returns refuse and forget
calls   those of multi_quota
server  Redis 6.0

An entry that is admitted or unusual is left to multi_quota.
]]

-- Shared by the runs of a call.
local judge_level, args, values, reply

-- Returns the judgement of a value: the reply of each quota, and whether all admit; false if something unusual is
-- stored.
local function judgement(level, number, extra)
  local known = level.judgements[number]
  if known == nil then
    level.alone = level.alone or { { quota = level.quota, cost = level.cost } }
    local alone = level.alone[1]
    alone.value, alone.extra = number, extra
    local succeeded, found = pcall(judge_level, level.alone, values)
    known = succeeded and not found.is_tidied and found
    level.judgements[number] = known
  end
  return known
end

-- Replies to an entry whose places begin at `place`, if it is refused. Returns the size of the reply, or nothing.
local function refuse(levels, place, size)
  local is_admitted = true
  for index = 1, #levels do
    local level = levels[index]
    level.judgements = level.judgements or {}
    local known = judgement(level, args[place], args[place + 1])
    if not known then
      return
    end
    is_admitted, place = is_admitted and known.is_admitted, place + 2
  end
  if is_admitted then
    return
  end
  place, size = place - 2 * #levels, size + 1
  reply[size] = 0
  for index = 1, #levels do
    local known = levels[index].judgements[args[place]]
    for field = 1, #known do
      reply[size + field] = known[field]
    end
    size, place = size + #known, place + 2
  end
  return size
end

-- Forgets the judgements of the values of an entry, which may have changed.
local function forget(levels, place)
  for index = 1, #levels do
    local judgements = levels[index].judgements
    for at = place, judgements and place + 2 * #levels - 2 or 0, 2 do
      judgements[args[at]] = nil
    end
  end
end

return function(...)
  judge_level, args, values, reply = ...
  return refuse, forget
end
