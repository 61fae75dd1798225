--[[
fast_path_several: decides the usual entry of one level and several quotas, as fast_path does that of one quota.

KEYS    the keys of the entry
ARGV    none; the caller passes the quotas
reply   decide, which appends the reply that decide.lua documents; attempt and write, its two halves
calls   SET; to add a unit to a journal APPEND; for a value that an earlier entry changed GET; those of fast_path
calls   and of the algorithms
server  Redis 6.0
]]

local call, unpack, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local _, _, write_range, create, expires_of, general = require('fast_path')
local journal, parse, join
local parts = {}

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

-- Attempts to charge several quotas. Returns what to write: the new value without its first bytes or, as the
-- third value says, a unit to append to the journal. The fourth value is the quota whose time to live the value
-- needs from now on, if it needs a new one.
local function attempt(first_quota, stored, first_extra, cost, reply, size)
  if are_logs(first_quota) and stored then
    if cost == 1 then
      local unit, new_size = journal.charge(first_quota, stored, reply, size)
      if unit then
        return unit, new_size, true
      end
    end
    stored = without_journal(stored)
  end
  local used, new_size, longest = attempt_all(first_quota, stored, first_extra, cost, reply, size)
  if used then
    return table.concat(parts, '', 2, used), new_size, false, longest
  end
end

local function write(_, key, stored, text, is_unit, longest)
  if is_unit then
    call('APPEND', key, text)
    return true
  elseif not longest then
    return write_range(key, '4', stored, text)
  end
  text = expires_of(longest) .. text
  if stored then
    call('SET', key, text, 'PX', longest.ttl)
  else
    create(key, text, longest.ttl)
  end
  return text
end

local function decide(first_quota, number, first_extra, cost, count, reply, size, values)
  local key, stored = KEYS[number], values[number]
  if stored == true then
    stored = call('GET', key)
  end
  local text, new_size, is_unit, longest
  if count == 1 then
    text, new_size, is_unit, longest =
      attempt(first_quota, stored, first_extra, cost, reply, size)
  end
  if not text then
    for index = #reply, size + 1, -1 do
      reply[index] = nil
    end
    return general(first_quota, number, first_extra, cost, count, reply, size, values)
  elseif text == true then
    return 0, new_size
  end
  values[number] = write(first_quota, key, stored, text, is_unit, longest)
  return count, new_size
end

return decide, attempt, write
