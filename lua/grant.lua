--[[
grant: decides an entry that asks for more units than its cost, which a process then holds. Charges the cost, and at
most an eighth of what is left after it.

KEYS    the keys of the entry
ARGV    none; the caller passes the quota
reply   make_decide, which returns a decide whose first result is the number of charged units
calls   those of multi_quota and of the decide that charges
server  Redis 6.0
]]

local _, _, judge_level = require('multi_quota')

-- The part of what is left that one entry gets, so that the other processes get units too.
local MAX_PART = 8

-- Returns the units to charge.
local function units_for(first_quota, value, extra, cost, more, values)
  local level = { quota = first_quota, value = value, extra = extra, cost = cost }
  local judged = judge_level({ level }, values)
  if not judged.is_admitted then
    return cost
  end
  local quota, left, index = first_quota, more * MAX_PART, 1
  repeat
    left = math.min(left, quota.limit - judged[index] - cost)
    quota, index = quota.next, index + 3
  until not quota
  return cost + math.floor(left / MAX_PART)
end

return function(decide, more)
  return function(first_quota, value, extra, cost, _, reply, size, values)
    local units = units_for(first_quota, value, extra, cost, more, values)
    local admitted, new_size = decide(first_quota, value, extra, units, 1, reply, size, values)
    return admitted * units, new_size
  end
end
