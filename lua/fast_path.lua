--[[
fast_path: decides the usual entry of one level and one quota: the quota admits, or is a log that refuses, and
nothing unusual is stored. Everything else is for multi_quota, which decides the whole entry then.

KEYS    the keys of the entry
ARGV    none; the caller passes the quota
reply   decide, which appends the reply that decide.lua documents; and what fast_path_several shares
calls   SET or SETRANGE; to add a run to a log APPEND; for a value that an earlier entry changed GET; those
calls   of the algorithms
server  Redis 6.0

A value that was changed in place is known as `true`: it is read again if a later entry is of the same
subject.
]]

local call, unpack, pack, sub, floor = redis.call, struct.unpack, struct.pack, string.sub, math.floor
local decide_one_level

local function general(...)
  decide_one_level = decide_one_level or select(2, require('multi_quota'))
  return decide_one_level(...)
end

-- Returns the first four bytes of a value that lives as long as a charge to a quota gives it.
local function expires_of(quota)
  local expires = quota.expires
  if not expires then
    expires = pack('>I4', floor((floor(now / 1000) + quota.ttl) / 1000))
    quota.expires = expires
  end
  return expires
end

-- Writes a value that is not there.
local function create(key, text, ttl)
  if not call('SET', key, text, 'PX', ttl, 'NX') then
    error('WRONGTYPE this key holds no count', 0)
  end
end

-- Writes what follows the first bytes of a value. SETRANGE takes less time than SET and leaves the time to live
-- alone, but does not shorten a value.
local function write_range(key, first, stored, text)
  if first + #text >= #stored then
    call('SETRANGE', key, first, text)
    return true
  end
  text = sub(stored, 1, first + 0) .. text
  call('SET', key, text, 'KEEPTTL')
  return text
end

-- Writes a value of one section that is not there, or does not live long enough.
local function renew(quota, key, stored, data, is_run)
  local header = quota.last_header
  if not stored then
    data = expires_of(quota) .. header .. data
    create(key, data, quota.ttl)
    return data
  end
  data = expires_of(quota) .. (is_run and sub(stored, 5) or header) .. data
  call('SET', key, data, 'PX', quota.ttl)
  return data
end

-- Decides a check of a large log of which a segment has to move.
local function decide_rotated(quota, number, first_extra, cost, count, reply, size, values, stored)
  local data, new_size, is_run
  local text, change_list = quota.rotate(quota, stored)
  if text then
    data, new_size, is_run = quota.attempt(quota, text, 16, #text, cost, count, reply, size)
  end
  if data == true then
    return 0, new_size
  elseif not is_run or unpack('>I4', text) * 1000000 < now + quota.needs then
    return general(quota, number, first_extra, cost, count, reply, size, values)
  end
  local key = KEYS[number]
  text = text .. data
  call('SET', key, text, 'KEEPTTL')
  local succeeded, problem = pcall(change_list)
  if not succeeded then
    call('SET', key, stored, 'KEEPTTL')
    error(problem, 0)
  end
  values[number] = text
  return count, new_size
end

-- Decides by a single quota. The halves of this function, with fewer calls in between, are attempt_one and
-- write_one in levels.
local function decide_one(quota, number, first_extra, cost, count, reply, size, values)
  local key, stored = KEYS[number], values[number]
  if stored == true then
    stored = call('GET', key)
  end
  local expires, found
  if stored then
    if #stored > 15 then
      expires, found = unpack('>I4c11', stored)
    end
    if found ~= quota.last_header then
      return general(quota, number, first_extra, cost, count, reply, size, values)
    end
  end
  if quota.extra > 0 then
    quota.extra_key = KEYS[first_extra]
  end
  local data, new_size, is_run =
    quota.attempt(quota, stored, 16, stored and #stored, cost, count, reply, size)
  if not data and stored and quota.rotate then
    return decide_rotated(quota, number, first_extra, cost, count, reply, size, values, stored)
  elseif not data then
    return general(quota, number, first_extra, cost, count, reply, size, values)
  elseif data == true then
    return 0, new_size
  end
  if not stored or expires * 1000000 < now + quota.needs then
    data = renew(quota, key, stored, data, is_run)
  elseif is_run then
    call('APPEND', key, data)
    data = true
  else
    data = write_range(key, '15', stored, data)
  end
  values[number] = data
  return count, new_size
end

return decide_one, renew, write_range, create, expires_of, general
