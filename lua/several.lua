--[[
several: decides an entry step by step: one of several quotas, or one that only looks. All quotas are
asked, and if all admit it, all are charged.

KEYS    the stored counts of the entry
ARGV    none; is given those of a plan
reply   decide; appends what decide documents
calls   those of the algorithms
server  Redis 5.0
]]

-- What the quotas say of a check that was charged, or only looked.
local function append_admitted(quotas, reply, size)
  for index = 1, #quotas do
    local quota = quotas[index]
    reply[size + 1], reply[size + 2] = quota.used, quota.reset
    size = size + 2
    local receipt = quota.count.steps.receipt
    if receipt then
      reply[size + 1], reply[size + 2] = receipt(quota.count, quota)
      size = size + 2
    end
  end
  return size
end

local function append_refused(quotas, reply, size)
  for index = 1, #quotas do
    local quota = quotas[index]
    reply[size + 1], reply[size + 2], reply[size + 3] = quota.used, quota.wait, quota.reset
    size = size + 3
  end
  return size
end

-- Whether all quotas admit a cost; each is told what it says of its count as it is now.
local function judge(quotas, cost)
  local admitted = true
  for index = 1, #quotas do
    local quota = quotas[index]
    quota.count.steps.judge(quota.count, quota, cost)
    admitted = admitted and quota.wait == 0
  end
  return admitted
end

-- Writes all counts or none. A write that fails leaves nothing behind, as for want of a right; those before
-- it are undone.
local function write(counts)
  for index = 1, #counts do
    local written, problem = pcall(counts[index].steps.write, counts[index])
    if not written then
      for before = 1, index - 1 do
        -- Where one cannot be undone, the others are.
        pcall(counts[before].steps.undo, counts[before])
      end
      error(problem, 0)
    end
  end
end

-- Charges as many of so many checks as are admitted, and tells how many.
local function grant(plan, cost, count, reply, size)
  local quotas, counts = plan.quotas, plan.counts
  local granted = 0
  local admitted = judge(quotas, cost)
  while admitted and granted < count do
    for index = 1, #counts do
      counts[index].steps.charge(counts[index], cost)
    end
    granted = granted + 1
    admitted = judge(quotas, granted < count and cost or 0)
    size = append_admitted(quotas, reply, size)
  end
  if granted > 0 then
    write(counts)
  end
  return granted, size
end

-- Tells how many of so many looks all quotas admit: all or none.
local function look(plan, count, reply, size)
  if judge(plan.quotas, 0) then
    return count, append_admitted(plan.quotas, reply, size)
  end
  return 0, size
end

-- The quotas of a plan, and their counts. A count is charged by the strictest of its quotas, by which it
-- drains.
local function open(plan)
  local quotas, counts, made, quota = {}, {}, {}, plan
  while quota do
    local steps = made[quota.steps] or quota.steps()
    made[quota.steps] = steps
    local count = counts[quota.counter]
    if not count then
      count = {
        steps = steps,
        window = quota.window,
        life = quota.life,
        quota = quota,
        strictest = quota,
      }
      counts[quota.counter] = count
    elseif quota.limit < count.strictest.limit then
      count.strictest = quota
    end
    quota.count = count
    quotas[#quotas + 1] = quota
    quota = quota.next
  end
  return { quotas = quotas, counts = counts }
end

return function(quota, first, cost, count, reply, size)
  quota.plan = quota.plan or open(quota)
  local plan = quota.plan
  local counts = plan.counts
  for index = 1, #counts do
    local stored = counts[index]
    stored.key = KEYS[first + index - 1]
    stored.steps.read(stored, cost)
  end
  local admitted
  if cost == 0 then
    admitted, size = look(plan, count, reply, size)
  else
    admitted, size = grant(plan, cost, count, reply, size)
  end
  if admitted < count then
    size = append_refused(plan.quotas, reply, size)
  end
  return admitted, size
end
