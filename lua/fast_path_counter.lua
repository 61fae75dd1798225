--[[
fast_path_counter: decides the usual entry of one level and one quota that stores a fixed number of numbers: the
quota admits, and nothing unusual is stored.

KEYS    the keys of the entry
ARGV    none; the caller passes the quota
reply   decide, which appends the reply that decide.lua documents; attempt and write, its two halves; renew;
reply   make_decide, which joins such halves
calls   SET or SETRANGE; for a value that an earlier entry changed GET; those of fast_path
server  Redis 6.0

The value is read by one unpack: each call and each text that Lua creates takes as long as ten numbers.
]]

local call, unpack, pack, KEYS = redis.call, struct.unpack, struct.pack, KEYS
local decide_one_level, create, expires_of

-- Attempts to charge a value. Returns the new data and, as the fourth value, the second at which it expires.
local function attempt(quota, stored, _, units, reply, size)
  local expires, header, first, second, third, fourth, fifth, sixth
  if stored then
    if #stored ~= quota.value_length then
      return
    end
    expires, header, first, second, third, fourth, fifth, sixth =
      unpack(quota.value_format, stored)
    if header ~= quota.last_header then
      return
    end
  end
  first, second, third, fourth, fifth, sixth =
    quota.step(quota, units, first, second, third, fourth, fifth, sixth)
  if first then
    local data = pack(quota.format, first, second, third, fourth, fifth, sixth)
    reply[size + 1] = data
    return data, size + 1, nil, expires
  end
end

-- Writes a value that is not there, or does not live long enough.
local function renew(key, stored, headers, data, longest)
  if not create then
    local _
    _, _, _, create, expires_of = require('fast_path')
  end
  data = expires_of(longest) .. headers .. data
  if stored then
    call('SET', key, data, 'PX', longest.ttl)
  else
    create(key, data, longest.ttl)
  end
  return data
end

local function write(quota, key, stored, data, _, expires)
  if not expires or expires < quota.renew_below then
    return renew(key, stored, quota.last_header, data, quota)
  end
  call('SETRANGE', key, '15', data)
  return true
end

local function make_decide(attempt_value, write_value)
  return function(quota, number, first_extra, cost, count, reply, size, values)
    local key, stored = KEYS[number], values[number]
    if stored == true then
      stored = call('GET', key)
    end
    local data, new_size, _, expires = attempt_value(quota, stored, nil, cost * count, reply, size)
    if not data then
      decide_one_level = decide_one_level or select(2, require('multi_quota'))
      return decide_one_level(quota, number, first_extra, cost, count, reply, size, values)
    end
    values[number] = write_value(quota, key, stored, data, nil, expires)
    return count, new_size
  end
end

return make_decide(attempt, write), attempt, write, renew, make_decide
