--[[
sorted_set_refund: gives back units of a sorted set, credits them, or forgets the set, for refund.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, and what was charged
reply   a function that changes the set; '' if nothing is left; false if nothing changes
calls   as sorted_set_log; ZCOUNT, ZREMRANGEBYRANK, PEXPIRE
server  Redis 6.0
]]

-- The units of a charge have its time: units of one microsecond are interchangeable.
local function refund_set(list, number, charged)
  local left, problem = list.room(list, number)
  if not left or set.used == 0 or charged.time <= now - list.window then
    return false, problem
  end
  local own, time = set, string.format('%.0f', charged.time)
  local before_time = call('ZCOUNT', own.key, '-inf', '(' .. time)
  local found = call('ZCOUNT', own.key, time, time)
  return found > 0 and function()
    set = own
    call('PEXPIRE', own.key, list.ttl)
    call('ZREMRANGEBYRANK', own.key, before_time + max(found - charged.units, 0), before_time + found - 1)
    if own.newest == charged.time then
      remove_expired(charged.time - list.window)
    end
  end
end

-- Takes the newest units, as of every log.
local function credit_set(list, number, charged)
  local left, problem = list.room(list, number)
  if not left or set.used == 0 then
    return false, problem
  elseif charged.units >= set.used then
    return ''
  end
  local own = set
  return function()
    set = own
    call('PEXPIRE', own.key, list.ttl)
    if own.expired > 0 then
      remove_expired(own.newest - list.window)
    end
    call('ZREMRANGEBYRANK', own.key, -charged.units, '-1')
  end
end

local function reset_set(list, number)
  local _, problem = list.room(list, number)
  return set.length ~= 0 and '' or false, problem
end

changes_of.sorted_set = { refund = refund_set, credit = credit_set, reset = reset_set }
