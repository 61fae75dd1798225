--[[
fast_path_counters: decides the usual entry of one level whose quotas, one or several, all store a fixed number of
numbers: all admit, and nothing unusual is stored.

KEYS    the keys of the entry
ARGV    none; the caller passes the quotas
reply   decide, which appends the reply that decide.lua documents; attempt and write, its two halves
calls   SET or SETRANGE; for a value that an earlier entry changed GET; those of fast_path
server  Redis 6.0

All numbers of a value are read by one unpack and written by one pack, since each text that Lua creates takes as long
as ten numbers. Each quota steps its own numbers and passes on those that follow.
]]

local call, unpack, pack, select = redis.call, struct.unpack, struct.pack, select
local KEYS = KEYS
local _, _, _, create, expires_of, general = require('fast_path')

-- Sets what the value of a list of quotas looks like.
local function prepare(first_quota)
  local headers, format, quota, longest = '', '', first_quota, first_quota
  repeat
    local next_quota = quota.next
    local length = next_quota and pack('>I2', struct.size(quota.format)) or '\0\0'
    headers, format = headers .. quota.header .. length, format .. quota.format
    if quota.ttl + 0 > longest.ttl + 0 then
      longest = quota
    end
    first_quota.renew_below = math.max(first_quota.renew_below, quota.renew_below)
    quota.following, quota = next_quota, next_quota
  until not quota
  local _, numbers = string.gsub(format, '%a', '')
  first_quota.headers, first_quota.data_format, first_quota.numbers = headers, format, numbers
  first_quota.value_format = '>I4c' .. #headers .. format
  first_quota.value_length = 4 + #headers + struct.size(format)
  first_quota.data_at, first_quota.longest = tostring(4 + #headers), longest
end

-- Packs the new numbers of all quotas, or returns nothing if some are missing.
local function packed(first_quota, ...)
  if select('#', ...) == first_quota.numbers then
    return pack(first_quota.data_format, ...)
  end
end

local function step_all(first_quota, units, expires, headers, ...)
  if headers == first_quota.headers then
    return packed(first_quota, first_quota.step(first_quota, units, ...)), expires
  end
end

-- As step_all, for one quota, in fewer calls.
local function step_one(quota, units, expires, headers, ...)
  if headers ~= quota.headers then
    return
  end
  local first, second, third, fourth, fifth, sixth = quota.step(quota, units, ...)
  if first then
    return pack(quota.data_format, first, second, third, fourth, fifth, sixth), expires
  end
end

-- Attempts to charge a value. Returns the new data and, as the fourth value, the second at which it expires.
local function attempt(first_quota, stored, _, units, reply, size)
  local length, data, expires = first_quota.value_length, nil, nil
  if not length then
    prepare(first_quota)
    length = first_quota.value_length
  end
  if not stored then
    data = packed(first_quota, first_quota.step(first_quota, units))
  elseif #stored == length then
    local step = first_quota.following and step_all or step_one
    data, expires = step(first_quota, units, unpack(first_quota.value_format, stored))
  end
  if data then
    reply[size + 1] = data
    return data, size + 1, nil, expires
  end
end

local function write(first_quota, key, stored, data, _, expires)
  if expires and expires >= first_quota.renew_below then
    call('SETRANGE', key, first_quota.data_at, data)
    return true
  end
  local longest = first_quota.longest
  data = expires_of(longest) .. first_quota.headers .. data
  if stored then
    call('SET', key, data, 'PX', longest.ttl)
  else
    create(key, data, longest.ttl)
  end
  return data
end

local function decide(first_quota, number, first_extra, cost, count, reply, size, values)
  local key, stored = KEYS[number], values[number]
  if stored == true then
    stored = call('GET', key)
  end
  local data, new_size, _, expires = attempt(first_quota, stored, nil, cost * count, reply, size)
  if not data then
    return general(first_quota, number, first_extra, cost, count, reply, size, values)
  end
  values[number] = write(first_quota, key, stored, data, nil, expires)
  return count, new_size
end

return decide, attempt, write
