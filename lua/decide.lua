--[[
decide: reads the entries of one call and decides them one after the other. An entry is one check, or
several that are alike: each asks all quotas, and charges all of them if all admit it, else none. An
entry that fails, for example on a key of another type, is answered by the text of the error and
leaves its neighbours alone.

KEYS    the stored counts, entry by entry: of each those of its quotas, each once
ARGV    call: plans
ARGV    plan: quotas
ARGV    quota: algorithm, parts, counter, limit, window
ARGV    run: entries, plan, cost, count
reply   call: time
reply   entry: admitted
reply   admitted: used, reset
reply   refused: used, wait, reset
reply   receipt: stamp, mark, back
calls   those of the algorithms
server  Redis 5.0

`plans` and `quotas` say how many follow. `parts` is into how many buckets a window is divided;
`counter` which of the entry's stored counts a quota judges, and `plan` which list of quotas the
entries of a run have, both from 1. A run stands for so many entries in a row, each of so many checks
(`count`) of one cost. cost, limit and used are units; window, wait, reset and time whole microseconds.

The reply is flat. Of an entry it holds how many of its checks were admitted, or the text of an error;
then what each quota says after each of those, and if not all were, what each says of the first that
was refused, which is what it says of all behind it. A tally adds a receipt for each admitted check: by
time, stamp, mark and back of the strictest quota of a count, refund finds again what was charged. A
wait of 0 admits, one of -1 never ends. A cost of 0 only looks, which is told once.
]]

-- As many units as one entry may ask for in several checks: the caller sees to it.
local UNITS_OF_ENTRY = 100000

local reply = { now }

local function append(number)
  -- Whole already, but in Lua 5.4 a quotient is a float, which math.floor makes an integer.
  reply[#reply + 1] = math.floor(number)
end

local function append_admitted(quotas)
  for _, quota in ipairs(quotas) do
    append(quota.used)
    append(quota.reset)
    if quota.algorithm.receipt then
      local stamp, mark, back = quota.algorithm.receipt(quota.count, quota)
      append(stamp)
      append(mark)
      append(back)
    end
  end
end

local function append_refused(quotas)
  for _, quota in ipairs(quotas) do
    append(quota.used)
    append(quota.wait)
    append(quota.reset)
  end
end

-- Whether all quotas admit a cost; each is told what it says of its count as it is now.
local function judge(quotas, cost)
  local admitted = true
  for _, quota in ipairs(quotas) do
    quota.algorithm.judge(quota.count, quota, cost)
    admitted = admitted and quota.wait == 0
  end
  return admitted
end

-- Charges as many of so many checks as are admitted; whether not all were.
local function grant(plan, cost, count)
  local head = #reply + 1
  local granted = 0
  reply[head] = granted
  local admitted = judge(plan.quotas, cost)
  while admitted and granted < count do
    for _, stored in ipairs(plan.counts) do
      stored.algorithm.charge(stored, cost)
    end
    granted = granted + 1
    admitted = judge(plan.quotas, granted < count and cost or 0)
    append_admitted(plan.quotas)
  end
  reply[head] = granted
  return granted < count
end

local function look(plan, count)
  local admitted = judge(plan.quotas, 0)
  append(admitted and count or 0)
  if admitted then
    append_admitted(plan.quotas)
  end
  return not admitted
end

-- Decides an entry whose first key is the one behind `key`.
local function decide(plan, key, cost, count)
  if count > 1 and cost * count > UNITS_OF_ENTRY then
    error('ERR an entry of more than ' .. text(UNITS_OF_ENTRY) .. ' units', 0)
  end
  for index, stored in ipairs(plan.counts) do
    stored.key = KEYS[key + index]
    stored.algorithm.read(stored, cost)
  end
  local refused
  if cost == 0 then
    refused = look(plan, count)
  else
    refused = grant(plan, cost, count)
  end
  if refused then
    append_refused(plan.quotas)
  end
  for _, stored in ipairs(plan.counts) do
    stored.algorithm.write(stored)
  end
end

-- Puts the text of an error in place of what an entry has said so far.
local function fail(head, problem)
  for index = #reply, head + 1, -1 do
    reply[index] = nil
  end
  -- Since Redis 7.0 an error is a table, before that a text.
  reply[head] = type(problem) == 'table' and problem.err or tostring(problem)
end

-- Reads the quota whose first argument is at `at`, and adds the count that it judges. A count is
-- charged by the strictest of its quotas, by which it drains.
local function read_quota(at, counts)
  local quota = {
    algorithm = algorithms[ARGV[at]],
    parts = tonumber(ARGV[at + 1]),
    limit = tonumber(ARGV[at + 3]),
    window = tonumber(ARGV[at + 4]),
  }
  local counter = tonumber(ARGV[at + 2])
  local count = counts[counter]
  if not count then
    count = {
      algorithm = quota.algorithm,
      parts = quota.parts,
      window = quota.window,
      first = quota,
      strictest = quota,
    }
    counts[counter] = count
  elseif quota.limit < count.strictest.limit then
    count.strictest = quota
  end
  quota.count = count
  return quota, at + 5
end

local at = 2

local plans = {}
for index = 1, tonumber(ARGV[1]) do
  local plan = { quotas = {}, counts = {} }
  local quotas = tonumber(ARGV[at])
  at = at + 1
  for quota = 1, quotas do
    plan.quotas[quota], at = read_quota(at, plan.counts)
  end
  plans[index] = plan
end

local key = 0
while at <= #ARGV do
  local plan = plans[tonumber(ARGV[at + 1])]
  local cost, count = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  for _ = 1, tonumber(ARGV[at]) do
    local head = #reply + 1
    local decided, problem = pcall(decide, plan, key, cost, count)
    if not decided then
      fail(head, problem)
    end
    key = key + #plan.counts
  end
  at = at + 4
end
return reply
