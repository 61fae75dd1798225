--[[
multi_quota: decides any entry, operation by operation: of several quotas, one that only looks, one that is
refused. Asks all quotas, and charges all of them if all admit. A quota that has a `cost` of its own is
asked for that, and one that has a `subject` is counted in the value of that number.

KEYS    the keys of the entry
ARGV    none; the caller passes the quotas
reply   decide, which appends the reply that decide.lua documents
calls   those of the algorithms and of subject; to see that a value is not of another type GET
server  Redis 6.0
]]

local subject_ops = require('subject')

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

-- Writes all that is charged or nothing. A write that fails, for example on a missing permission, leaves
-- nothing behind: those before it are undone.
local function write(entry)
  local done = {}
  local function attempt(ops, state)
    local written, problem = pcall(ops.write, state)
    if not written then
      for index = #done, 1, -2 do
        -- One that cannot be undone does not keep the others from it.
        pcall(done[index - 1].undo, done[index])
      end
      error(problem, 0)
    end
    done[#done + 1], done[#done + 2] = ops, state
  end

  -- A value first: where it cannot be written, a key of another type is in the way.
  for index = 1, #entry.subjects do
    local subject = entry.subjects[index]
    if #subject.states > 0 and subject.states[1].quota.cost ~= 0 then
      attempt(subject_ops, subject)
    end
  end
  for index = 1, #entry.states do
    local state = entry.states[index]
    if state.ops.write and state.quota.cost ~= 0 then
      attempt(state.ops, state)
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
    write(entry)
  else
    for index = 1, #entry.subjects do
      subject_ops.tidy(entry.subjects[index])
    end
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

-- Collects the quotas of a list, the states that they share, and the subjects in whose values these are. The
-- strictest quota of a state charges it: by its limit the units drain.
local function collect(first_quota)
  local entry, ops_of, quota = { quotas = {}, states = {}, subjects = {} }, {}, first_quota
  while quota do
    local ops = ops_of[quota.make_ops] or quota.make_ops()
    ops_of[quota.make_ops] = ops
    local state = entry.states[quota.counter]
    if not state then
      state = {
        ops = ops,
        header = quota.header,
        extra = quota.extra,
        window = quota.window,
        needs = quota.needs or quota.window,
        ttl = quota.ttl,
        quota = quota,
        strictest = quota,
      }
      entry.states[quota.counter] = state
      local number = quota.subject or 1
      entry.subjects[number] = entry.subjects[number] or { states = {} }
      if ops.load then
        local states = entry.subjects[number].states
        states[#states + 1] = state
      end
    elseif quota.limit < state.strictest.limit then
      state.strictest = quota
    end
    quota.state = state
    entry.quotas[#entry.quotas + 1] = quota
    quota = quota.next
  end
  return entry
end

-- `values` holds what is stored in the values of the call; `first_value` and `first_extra` say which keys
-- are those of the entry.
return function(first_quota, first_value, first_extra, cost, count, reply, size, values)
  first_quota.entry = first_quota.entry or collect(first_quota)
  local entry = first_quota.entry
  local subjects, states = entry.subjects, entry.states
  for index = 1, #states do
    local state = states[index]
    state.extra_key, state.charged, state.tidied = nil, false, false
    if state.extra > 0 then
      state.extra_key = KEYS[first_extra + state.extra - 1]
    end
    if not state.ops.load then
      state.ops.read(state, cost > 0 and state.quota.cost or cost)
    end
  end
  for index = 1, #subjects do
    local number = first_value + index - 1
    local subject, key, stored = subjects[index], KEYS[number], values[number]
    if #subject.states > 0 then
      if not stored or stored == true then
        -- MGET does not tell a key of another type from one that is not there.
        stored = redis.call('GET', key)
      end
      subject_ops.open(subject, key, stored, cost)
    end
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
  for index = 1, #subjects do
    if subjects[index].stored ~= nil then
      values[first_value + index - 1] = subjects[index].stored
    end
  end
  return admitted, size
end
