--[[
fast_path: decides the usual entry: all quotas admit, or a log that is the only one refuses, and nothing
unusual is stored. Everything else is for multi_quota, which decides the whole entry then.

KEYS    the keys of the entry
ARGV    none; the caller passes the quotas
reply   decide, which appends the reply that decide.lua documents; decide_one, for a single quota
calls   SET or SETRANGE; to add a run to a log APPEND; for a value that an earlier entry changed GET; those
calls   of the algorithms
server  Redis 6.0

A value that was changed in place is known as `true`: it is read again if a later entry is of the same
subject.
]]

local call, unpack, pack, sub, floor = redis.call, struct.unpack, struct.pack, string.sub, math.floor
local multi_quota, journal, parse, join
local parts = {}

local function general(...)
  multi_quota = multi_quota or require('multi_quota')
  return multi_quota(...)
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

local function decide_one(quota, number, first_extra, cost, count, reply, size, values)
  local key, stored, header = KEYS[number], values[number], quota.last_header
  if stored == true then
    stored = call('GET', key)
  end
  local expires, found
  if stored then
    if #stored > 15 then
      expires, found = unpack('>I4c11', stored)
    end
    if found ~= header then
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
  if not stored then
    data = expires_of(quota) .. header .. data
    create(key, data, quota.ttl)
  elseif expires * 1000000 < now + quota.needs then
    data = expires_of(quota) .. (is_run and sub(stored, 5) or header) .. data
    call('SET', key, data, 'PX', quota.ttl)
  elseif is_run then
    call('APPEND', key, data)
    data = true
  else
    data = write_range(key, '15', stored, data)
  end
  values[number] = data
  return count, new_size
end

-- Returns whether all quotas are logs, which may have a journal.
local function are_logs(first_quota)
  local is_logs, quota = first_quota.is_logs, first_quota
  if is_logs == nil then
    is_logs = true
    repeat
      is_logs = is_logs and sub(quota.header, 1, 1) == 'l'
      quota = quota.next
    until not quota
    first_quota.is_logs = is_logs
  end
  if is_logs and not journal then
    journal = require('journal')
    parse, join = require('value')
  end
  return is_logs
end

-- Returns a value whose logs have the units of its journal.
local function without_journal(stored)
  local sections, order, expires = parse(stored)
  return join(sections, order, expires)
end

-- Puts the sections of all quotas into `parts`, from the second part on. Returns the index of the last part, the
-- size of the reply, and the quota whose time to live the value needs from now on, if it needs a new one; nothing if
-- a quota refuses or stores something unusual.
local function attempt_all(first_quota, stored, first_extra, cost, reply, size)
  local at, last, left, used = 5, stored and #stored, 0, 1
  local quota, longest, quota_last, has_no_lists = first_quota, nil, nil, true
  if stored then
    left = unpack('>I4', stored) * 1000000 - now
  end
  repeat
    local from, to
    if stored then
      if at > last or sub(stored, at, at + 8) ~= quota.header then
        return
      end
      local length = unpack('>I2', stored, at + 9)
      from, to = at + 11, length == 0 and last or at + 10 + length
      at = to + 1
    end
    if quota.extra > 0 then
      quota.extra_key = KEYS[first_extra + quota.extra - 1]
    end
    local data, new_size, is_run = quota.attempt(quota, stored, from, to, cost, 1, reply, size)
    if not data or data == true then
      return
    elseif is_run then
      data = sub(stored, from, to) .. data
    end
    if left < quota.needs and (not longest or quota.ttl + 0 > longest.ttl + 0) then
      longest = quota
    end
    local next_quota = quota.next
    if next_quota or stored and at <= last then
      local length = #data
      if quota.data_length ~= length then
        quota.data_length, quota.sized_header = length, quota.header .. pack('>I2', length)
      end
      parts[used + 1] = quota.sized_header
    else
      parts[used + 1] = quota.last_header
    end
    parts[used + 2] = data
    has_no_lists = has_no_lists and first_quota.is_logs and unpack('>I4', data, 9) < 2
    used, size, quota_last, quota = used + 2, new_size, quota, next_quota
  until not quota
  if stored and at <= last then
    used = used + 1
    parts[used] = sub(stored, at)
  elseif first_quota.is_logs and has_no_lists then
    parts[used - 1] = quota_last.header .. pack('>I2', #parts[used])
    used = used + 1
    parts[used] = journal.empty()
  end
  return used, size, longest
end

local function decide(first_quota, number, first_extra, cost, count, reply, size, values)
  local key, stored = KEYS[number], values[number]
  if stored == true then
    stored = call('GET', key)
  end
  local used, new_size, longest
  if count == 1 then
    local current = stored
    if are_logs(first_quota) and stored then
      local unit
      if cost == 1 then
        unit, new_size = journal.charge(first_quota, stored, reply, size)
      end
      if unit == true then
        return 0, new_size
      elseif unit then
        call('APPEND', key, unit)
        values[number] = true
        return 1, new_size
      end
      current = without_journal(stored)
    end
    used, new_size, longest = attempt_all(first_quota, current, first_extra, cost, reply, size)
  end
  if not used then
    for index = #reply, size + 1, -1 do
      reply[index] = nil
    end
    return general(first_quota, number, first_extra, cost, count, reply, size, values)
  end
  local text = table.concat(parts, '', 2, used)
  if not longest then
    text = write_range(key, '4', stored, text)
  else
    text = expires_of(longest) .. text
    if stored then
      call('SET', key, text, 'PX', longest.ttl)
    else
      create(key, text, longest.ttl)
    end
  end
  values[number] = text
  return 1, new_size
end

return decide, decide_one
