--[[
fast_path_counters: decides the usual entry of one level and several quotas that all store a fixed number of numbers,
as fast_path_counter does that of one quota.

KEYS    the keys of the entry
ARGV    none; the caller passes the quotas
reply   decide, which appends the reply that decide.lua documents; attempt and write, its two halves
calls   SETRANGE; those of fast_path_counter
server  Redis 6.0

All numbers of a value are read by one unpack and written by one pack. Each quota steps its own numbers, and passes on
those that follow.
]]

local call, unpack, pack, select = redis.call, struct.unpack, struct.pack, select
local _, _, _, renew, make_decide = require('fast_path_counter')

-- Sets what the values of a list of quotas have in common.
local function prepare(first_quota)
  local headers, format, length, quota = '', '', 0, first_quota
  local longest, renew_below = first_quota, 0
  repeat
    local next_quota, data_length = quota.next, quota.value_length - 15
    headers = headers .. quota.header .. (next_quota and pack('>I2', data_length) or '\0\0')
    format, length = format .. quota.format, length + data_length
    if quota.ttl + 0 > longest.ttl + 0 then
      longest = quota
    end
    renew_below = quota.renew_below > renew_below and quota.renew_below or renew_below
    quota.following, quota = next_quota, next_quota
  until not quota
  local _, numbers = string.gsub(format, '%a', '')
  local list = {
    headers = headers,
    numbers = numbers,
    longest = longest,
    renew_below = renew_below,
    data_format = format,
    data_at = tostring(4 + #headers),
    value_format = '>I4c' .. #headers .. format,
    value_length = 4 + #headers + length,
  }
  first_quota.list = list
  return list
end

-- Packs the new numbers of all quotas; returns nothing if some are missing.
local function packed(list, ...)
  if select('#', ...) == list.numbers then
    return pack(list.data_format, ...)
  end
end

local function step_all(list, quota, units, expires, headers, ...)
  if headers == list.headers then
    return packed(list, quota.step(quota, units, ...)), expires
  end
end

-- Attempts to charge a value. Returns the new data and, as the fourth value, the second at which it expires.
local function attempt(first_quota, stored, _, units, reply, size)
  local list, data, expires = first_quota.list or prepare(first_quota), nil, nil
  if not stored then
    data = packed(list, first_quota.step(first_quota, units))
  elseif #stored == list.value_length then
    data, expires = step_all(list, first_quota, units, unpack(list.value_format, stored))
  end
  if data then
    reply[size + 1] = data
    return data, size + 1, nil, expires
  end
end

local function write(first_quota, key, stored, data, _, expires)
  local list = first_quota.list
  if not expires or expires < list.renew_below then
    return renew(key, stored, list.headers, data, list.longest)
  end
  call('SETRANGE', key, list.data_at, data)
  return true
end

return make_decide(attempt, write), attempt, write
