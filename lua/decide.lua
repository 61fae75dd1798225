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

local reply, size = { now }, 1

-- What the quotas say of a check that was charged, or only looked.
local function append_admitted(quotas)
  for index = 1, #quotas do
    local quota = quotas[index]
    reply[size + 1], reply[size + 2] = quota.used, quota.reset
    size = size + 2
    local receipt = quota.algorithm.receipt
    if receipt then
      reply[size + 1], reply[size + 2], reply[size + 3] = receipt(quota.count, quota)
      size = size + 3
    end
  end
end

local function append_refused(quotas)
  for index = 1, #quotas do
    local quota = quotas[index]
    reply[size + 1], reply[size + 2], reply[size + 3] = quota.used, quota.wait, quota.reset
    size = size + 3
  end
end

-- Whether all quotas admit a cost; each is told what it says of its count as it is now.
local function judge(quotas, cost)
  local admitted = true
  for index = 1, #quotas do
    local quota = quotas[index]
    quota.algorithm.judge(quota.count, quota, cost)
    admitted = admitted and quota.wait == 0
  end
  return admitted
end

-- Charges as many of so many checks as are admitted, and tells how many.
local function grant(plan, cost, count)
  local quotas, counts = plan.quotas, plan.counts
  local granted = 0
  local admitted = judge(quotas, cost)
  while admitted and granted < count do
    for index = 1, #counts do
      local charged = counts[index]
      charged.algorithm.charge(charged, cost)
    end
    granted = granted + 1
    admitted = judge(quotas, granted < count and cost or 0)
    append_admitted(quotas)
  end
  if granted > 0 then
    for index = 1, #counts do
      local charged = counts[index]
      charged.algorithm.write(charged)
    end
  end
  return granted
end

-- Tells how many of so many looks all quotas admit: all or none.
local function look(plan, count)
  if judge(plan.quotas, 0) then
    append_admitted(plan.quotas)
    return count
  end
  return 0
end

-- Decides an entry step by step, and tells how many of its checks all quotas admit.
local function weigh(plan, cost, count)
  local counts = plan.counts
  for index = 1, #counts do
    local stored = counts[index]
    stored.algorithm.read(stored, cost)
  end
  if cost == 0 then
    return look(plan, count)
  end
  return grant(plan, cost, count)
end

-- Decides an entry whose first key is the one behind `key`, and tells how many checks it admits.
local function decide(plan, key, cost, count)
  if count > 1 and cost * count > UNITS_OF_ENTRY then
    error('ERR an entry of more than ' .. text(UNITS_OF_ENTRY) .. ' units', 0)
  end
  local counts = plan.counts
  for index = 1, #counts do
    counts[index].key = KEYS[key + index]
  end
  -- The usual entry has one quota, which need not wait for what others say.
  local alone, admitted = plan.alone
  if alone and cost > 0 then
    admitted, size = alone.algorithm.grant(alone.count, alone, cost, count, reply, size)
    if admitted < count then
      alone.algorithm.judge(alone.count, alone, cost)
    end
  else
    admitted = weigh(plan, cost, count)
  end
  if admitted < count then
    append_refused(plan.quotas)
  end
  return admitted
end

-- Puts the text of an error in place of what an entry has said so far.
local function fail(head, problem)
  -- Not only up to `size`: an algorithm that decides alone may have failed on its way.
  for index = #reply, head + 1, -1 do
    reply[index] = nil
  end
  -- Since Redis 7.0 an error is a table, before that a text.
  reply[head] = type(problem) == 'table' and problem.err or tostring(problem)
  size = head
end

-- Reads the quota whose first argument is at `at`, and adds the count that it judges. A count is
-- charged by the strictest of its quotas, by which it drains.
local function read_quota(at, counts)
  local quota = {
    algorithm = algorithm_of(ARGV[at]),
    parts = ARGV[at + 1] + 0,
    limit = ARGV[at + 3] + 0,
    window = ARGV[at + 4] + 0,
    -- Its answer: with a place from the start, so that the table need not grow.
    count = false,
    used = 0,
    wait = 0,
    reset = 0,
  }
  if quota.algorithm.prepare then
    quota.algorithm.prepare(quota)
  end
  local counter = ARGV[at + 2] + 0
  local count = counts[counter]
  if not count then
    count = { algorithm = quota.algorithm, window = quota.window, first = quota, strictest = quota }
    counts[counter] = count
  elseif quota.limit < count.strictest.limit then
    count.strictest = quota
  end
  quota.count = count
  return quota, at + 5
end

local at = 2

local plans = {}
for index = 1, ARGV[1] + 0 do
  local plan = { quotas = {}, counts = {} }
  local quotas = ARGV[at] + 0
  at = at + 1
  for quota = 1, quotas do
    plan.quotas[quota], at = read_quota(at, plan.counts)
  end
  local first = plan.quotas[1]
  plan.alone = quotas == 1 and first.algorithm.grant and first
  plans[index] = plan
end

local key = 0
while at <= #ARGV do
  local plan = plans[ARGV[at + 1] + 0]
  local cost, count = ARGV[at + 2] + 0, ARGV[at + 3] + 0
  for _ = 1, ARGV[at] + 0 do
    size = size + 1
    local head = size
    -- What an entry says goes behind its head.
    reply[head] = 0
    local decided, said = pcall(decide, plan, key, cost, count)
    if decided then
      reply[head] = said
    else
      fail(head, said)
    end
    key = key + #plan.counts
  end
  at = at + 4
end
return reply
