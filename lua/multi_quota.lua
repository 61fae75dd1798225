--[[
multi_quota: decides an entry operation by operation: one of several quotas, or one that only looks. Asks
all quotas, and charges all of them if all admit. A quota that has a `cost` of its own is asked for that.

KEYS    the keys of the entry
ARGV    none; the caller passes the quotas
reply   decide, which appends the reply that decide.lua documents
calls   those of the algorithms
server  Redis 5.0
]]

-- Appends the reply of each quota to a check that was charged, or that only looked.
local function append_admitted(quotas, reply, size)
  for index = 1, #quotas do
    local quota = quotas[index]
    reply[size + 1], reply[size + 2] = quota.used, quota.reset
    size = size + 2
    local receipt = quota.state.ops.receipt
    if receipt then
      reply[size + 1], reply[size + 2] = receipt(quota.state, quota)
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

-- Judges a cost by each quota, and returns whether all of them admit it.
local function judge(quotas, cost)
  local admitted = true
  for index = 1, #quotas do
    local quota = quotas[index]
    quota.state.ops.judge(quota.state, quota, cost > 0 and quota.cost or cost)
    admitted = admitted and quota.wait == 0
  end
  return admitted
end

-- Writes all states or none. A write that fails, for example on a missing permission, leaves nothing
-- behind; those before it are undone.
local function write(states)
  for index = 1, #states do
    local written, problem = true, nil
    if states[index].quota.cost ~= 0 then
      written, problem = pcall(states[index].ops.write, states[index])
    end
    if not written then
      for before = 1, index - 1 do
        -- One that cannot be undone does not keep the others from it.
        if states[before].quota.cost ~= 0 then
          pcall(states[before].ops.undo, states[before])
        end
      end
      error(problem, 0)
    end
  end
end

-- Charges as many checks as are admitted, and returns their number.
local function charge(entry, cost, count, reply, size)
  local quotas, states = entry.quotas, entry.states
  local charged = 0
  local admitted = judge(quotas, cost)
  while admitted and charged < count do
    for index = 1, #states do
      local own_cost = states[index].quota.cost or cost
      if own_cost > 0 then
        states[index].ops.charge(states[index], own_cost)
      end
    end
    charged = charged + 1
    admitted = judge(quotas, charged < count and cost or 0)
    size = append_admitted(quotas, reply, size)
  end
  if charged > 0 then
    write(states)
  end
  return charged, size
end

-- Returns how many looks all quotas admit: all or none.
local function look(entry, count, reply, size)
  if judge(entry.quotas, 0) then
    return count, append_admitted(entry.quotas, reply, size)
  end
  return 0, size
end

-- Collects the quotas of a list and the states of their keys. The strictest quota of a key charges it:
-- by its limit the units drain.
local function collect(first_quota)
  local quotas, states, ops_of, quota = {}, {}, {}, first_quota
  while quota do
    local ops = ops_of[quota.make_ops] or quota.make_ops()
    ops_of[quota.make_ops] = ops
    local state = states[quota.key_index]
    if not state then
      state = {
        ops = ops,
        window = quota.window,
        ttl = quota.ttl,
        quota = quota,
        strictest = quota,
      }
      states[quota.key_index] = state
    elseif quota.limit < state.strictest.limit then
      state.strictest = quota
    end
    quota.state = state
    quotas[#quotas + 1] = quota
    quota = quota.next
  end
  return { quotas = quotas, states = states }
end

return function(first_quota, first_key, cost, count, reply, size)
  first_quota.entry = first_quota.entry or collect(first_quota)
  local entry = first_quota.entry
  local states = entry.states
  for index = 1, #states do
    local state = states[index]
    state.key = KEYS[first_key + index - 1]
    state.ops.read(state, cost > 0 and state.quota.cost or cost)
  end
  local admitted
  if cost == 0 then
    admitted, size = look(entry, count, reply, size)
  else
    admitted, size = charge(entry, cost, count, reply, size)
  end
  if admitted < count then
    size = append_refused(entry.quotas, reply, size)
  end
  return admitted, size
end
