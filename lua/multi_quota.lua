--[[
multi_quota: decides any entry, operation by operation: of several quotas or levels, one that only looks, one
that is refused. Asks all quotas of all levels, and charges all of them if all admit.

KEYS    the keys of the entry
ARGV    none; the caller passes the levels
reply   decide, which appends the reply that decide.lua documents; decide_one_level; judge_level
calls   those of the algorithms and of subject; to see that a value is not of another type GET
server  Redis 6.0

A level is a table of its first `quota`, its `cost`, the number of its `value` and of its first `extra` key.
]]

local subject_ops = require('subject')

-- Appends the reply of each quota to a check that was charged, or that only looked.
local function append_admitted(entry, reply, size)
  for index = 1, #entry.quotas do
    local quota, state = entry.quotas[index], entry.state_of_quota[index]
    reply[size + 1], reply[size + 2] = quota.used, quota.reset
    size = size + 2
    local receipt = state.ops.receipt
    if receipt then
      reply[size + 1], reply[size + 2] = receipt(state, quota)
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

-- Judges the cost of each level, or none, by its quotas. Returns whether all of them admit it.
local function judge(entry, is_look)
  local admitted = true
  for index = 1, #entry.quotas do
    local quota, state = entry.quotas[index], entry.state_of_quota[index]
    state.ops.judge(state, quota, is_look and 0 or state.level.cost)
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
    if #subject.states > 0 and subject.level.cost > 0 then
      attempt(subject_ops, subject)
    end
  end
  for index = 1, #entry.states do
    local state = entry.states[index]
    if state.ops.write and state.level.cost > 0 then
      attempt(state.ops, state)
    end
  end
end

-- Charges as many checks as are admitted, and returns their number.
local function charge(entry, count, reply, size)
  local states, charged = entry.states, 0
  local admitted = judge(entry, false)
  while admitted and charged < count do
    for index = 1, #states do
      local state = states[index]
      if state.level.cost > 0 then
        state.ops.charge(state, state.level.cost)
      end
    end
    charged = charged + 1
    admitted = judge(entry, charged == count)
    size = append_admitted(entry, reply, size)
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
  if judge(entry, true) then
    return count, append_admitted(entry, reply, size)
  end
  return 0, size
end

local function copy(quota)
  local copied = {}
  for name, value in pairs(quota) do
    copied[name] = value
  end
  copied.next = quota.next and copy(quota.next)
  return copied
end

-- Collects the quotas of the levels, the states that these share, and the subjects in whose values they are. The
-- strictest quota of a state charges it: by its limit the units drain.
local function collect(levels)
  local entry = { quotas = {}, state_of_quota = {}, states = {}, subjects = {} }
  local ops_of, lists = {}, {}
  for index = 1, #levels do
    local level, states = levels[index], {}
    local subject = { level = level, states = {} }
    -- Two levels of one list each judge by their own quotas.
    local quota = lists[level.quota] and copy(level.quota) or level.quota
    lists[quota], entry.subjects[index] = true, subject
    repeat
      local ops = ops_of[quota.make_ops] or quota.make_ops()
      ops_of[quota.make_ops] = ops
      local state = states[quota.counter]
      if not state then
        state = {
          ops = ops,
          level = level,
          header = quota.header,
          last_header = quota.last_header,
          extra = quota.extra,
          window = quota.window,
          needs = quota.needs or quota.window,
          ttl = quota.ttl,
          quota = quota,
          strictest = quota,
        }
        states[quota.counter] = state
        entry.states[#entry.states + 1] = state
        if ops.load then
          subject.states[#subject.states + 1] = state
        end
      elseif quota.limit < state.strictest.limit then
        state.strictest = quota
      end
      local last = #entry.quotas + 1
      entry.quotas[last], entry.state_of_quota[last] = quota, state
      quota = quota.next
    until not quota
  end
  return entry
end

-- Takes what is stored for each level, and returns whether all of them only look. `values` holds what is stored
-- in the values of the call.
local function read(entry, values)
  local states, subjects, is_look = entry.states, entry.subjects, true
  for index = 1, #states do
    local state = states[index]
    local level = state.level
    state.extra_key, state.charged, state.tidied = nil, false, false
    if state.extra > 0 then
      state.extra_key = KEYS[level.extra + state.extra - 1]
    end
    if not state.ops.load then
      state.ops.read(state, level.cost)
    end
  end
  for index = 1, #subjects do
    local subject = subjects[index]
    local level = subject.level
    local key, stored = KEYS[level.value], values[level.value]
    is_look = is_look and level.cost == 0
    if #subject.states > 0 then
      if not stored or stored == true then
        -- MGET does not tell a key of another type from one that is not there.
        stored = redis.call('GET', key)
      end
      subject_ops.open(subject, key, stored, level.cost)
    end
  end
  return is_look
end

local function decide(levels, count, reply, size, values)
  levels.entry = levels.entry or collect(levels)
  local entry, admitted = levels.entry, nil
  if read(entry, values) then
    admitted, size = look(entry, count, reply, size)
  else
    admitted, size = charge(entry, count, reply, size)
  end
  if admitted < count then
    size = append_refused(entry.quotas, reply, size)
  end
  for index = 1, #entry.subjects do
    local subject = entry.subjects[index]
    if subject.stored ~= nil then
      values[subject.level.value] = subject.stored
    end
  end
  return admitted, size
end

local function decide_one_level(first_quota, value, extra, cost, count, reply, size, values)
  first_quota.levels = first_quota.levels or { { quota = first_quota } }
  local level = first_quota.levels[1]
  level.value, level.extra, level.cost = value, extra, cost
  return decide(first_quota.levels, count, reply, size, values)
end

-- Judges the cost of a level, the only one of a list. Returns the reply of each quota, as to a refused check, with
-- whether all admit, and whether units in the future have to be moved.
local function judge_level(levels, values)
  levels.entry = levels.entry or collect(levels)
  local entry = levels.entry
  read(entry, values)
  -- With room for one quota.
  local found = { 0, 0, 0, is_admitted = judge(entry, false), is_tidied = false }
  for index = 1, #entry.states do
    found.is_tidied = found.is_tidied or entry.states[index].tidied
  end
  append_refused(entry.quotas, found, 0)
  return found
end

return decide, decide_one_level, judge_level
