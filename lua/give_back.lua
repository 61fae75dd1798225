--[[
give_back: changes counts of a subject by which fewer units count: for refund and credit.

KEYS    the value of the subject, if a count is packed; then the extra keys of the counts
ARGV    none; the caller passes the counts, and how each changes
reply   add_count, give_back
calls   GET; those of subject and of the algorithms
server  Redis 6.0

All is read before anything is written: if a count cannot be read, none is changed.
]]

local subject_ops = require('subject')
local subject, sets = { states = {} }, {}

local function add_count(quota, extra)
  local ops = quota.make_ops()
  local state = {
    ops = ops,
    header = quota.header,
    extra_key = extra > 0 and KEYS[extra] or nil,
    window = quota.window,
    needs = quota.needs,
    ttl = quota.ttl,
    quota = quota,
    strictest = quota,
  }
  local states = ops.load and subject.states or sets
  states[#states + 1] = state
  return state
end

-- `change` returns whether a packed count has changed, and writes a sorted set, which is read before if
-- `change` has to know it.
local function give_back(change, reads_sets)
  local states = subject.states
  for index = 1, reads_sets and #sets or 0 do
    sets[index].ops.read(sets[index], 0)
  end
  if #states > 0 then
    subject_ops.open(subject, KEYS[1], redis.call('GET', KEYS[1]), 0)
    local has_changed = false
    for index = 1, #states do
      states[index].tidied = change(states[index])
      has_changed = has_changed or states[index].tidied
    end
    if has_changed then
      subject_ops.write(subject)
      for index = 1, #states do
        if states[index].tidied and states[index].ops.write then
          states[index].ops.write(states[index])
        end
      end
    end
  end
  for index = 1, #sets do
    change(sets[index])
  end
end

return add_count, give_back
