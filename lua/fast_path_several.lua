--[[
fast_path_several: decides the usual entry of one level and several quotas, not all of them counters, as fast_path does
that of one quota.

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

-- The header of a journal, which is the last section.
local JOURNAL = 'j' .. string.rep('\0', 10)

-- Returns whether all quotas are logs, which may have a journal, and counts them.
local function are_logs(first_quota)
  local is_logs, quota, quotas = first_quota.is_logs, first_quota, 0
  if is_logs == nil then
    is_logs = true
    repeat
      is_logs = is_logs and sub(quota.header, 1, 1) == 'l'
      quota, quotas = quota.next, quotas + 1
    until not quota
    first_quota.is_logs, first_quota.quotas = is_logs, quotas
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

-- Finds the data of all quotas, if the value has no other sections than theirs and a journal. Returns the byte of the
-- data of the journal; that behind the value if there is none.
local function find_data(first_quota, stored)
  local quota, at, last, header, length = first_quota, 5, #stored, nil, nil
  repeat
    if at + 11 > last then
      return
    end
    header, length = unpack('>c9I2', stored, at)
    if header ~= quota.header then
      return
    end
    quota.data_size, at, quota = length, at + 11, quota.next
  until not quota or length == 0
  if quota then
    return
  elseif length > 0 then
    if sub(stored, at, at + 10) ~= JOURNAL then
      return
    end
    at = at + 11
  end
  quota = first_quota
  repeat
    length = quota.data_size
    local to = length == 0 and last or at + length - 1
    if to < at or to > last then
      return
    end
    quota.from, quota.to = at, to
    at, quota = to + 1, quota.next
  until not quota
  return at
end

-- Attempts to charge a counter of a fixed number of numbers. Returns its new data, and the size of the reply.
local function attempt_counter(quota, stored, cost, reply, size)
  local step = quota.step
  local first, second, third, fourth, fifth, sixth
  if not stored then
    first, second, third, fourth, fifth, sixth = step(quota, cost)
  elseif quota.to - quota.from + 16 == quota.value_length then
    first, second, third, fourth, fifth, sixth =
      step(quota, cost, unpack(quota.format, stored, quota.from))
  end
  if first then
    local data = pack(quota.format, first, second, third, fourth, fifth, sixth)
    reply[size + 1] = data
    return data, size + 1
  end
end

-- Puts the headers of all quotas and then their data into `parts`, from the second part on. Returns the index of the
-- last part, the size of the reply, and the quota whose time to live the value needs from now on, if it needs a new
-- one; nothing if a quota refuses or stores something unusual.
local function attempt_all(first_quota, stored, first_extra, cost, reply, size)
  local left, number, quotas = 0, 1, first_quota.quotas
  local quota, longest, has_no_lists = first_quota, nil, true
  if stored then
    left = unpack('>I4', stored) * 1000000 - now
  end
  repeat
    if quota.extra > 0 then
      quota.extra_key = KEYS[first_extra + quota.extra - 1]
    end
    local attempt, data, new_size, is_run = quota.attempt, nil, nil, nil
    if attempt then
      data, new_size, is_run =
        attempt(quota, stored, quota.from, quota.to, cost, 1, reply, size)
    else
      data, new_size = attempt_counter(quota, stored, cost, reply, size)
    end
    if not data or data == true then
      return
    elseif is_run then
      data = sub(stored, quota.from, quota.to) .. data
    end
    if left < quota.needs and (not longest or quota.ttl + 0 > longest.ttl + 0) then
      longest = quota
    end
    local next_quota, length = quota.next, #data
    if next_quota and quota.data_length ~= length then
      quota.data_length, quota.sized_header = length, quota.header .. pack('>I2', length)
    end
    number = number + 1
    parts[number] = next_quota and quota.sized_header or quota.last_header
    parts[number + quotas] = data
    has_no_lists = has_no_lists and first_quota.is_logs and unpack('>I4', data, 9) < 2
    size, quota = new_size, next_quota
  until not quota
  return number, size, longest, has_no_lists
end

-- Attempts to charge several quotas. Returns what to write: the new value without its first bytes or, as the
-- third value says, a unit to append to the journal. The fourth value is the quota whose time to live the value
-- needs from now on, if it needs a new one.
local function attempt(first_quota, stored, first_extra, cost, reply, size)
  local has_logs, journal_at = are_logs(first_quota), nil
  if stored then
    journal_at = find_data(first_quota, stored)
    if not journal_at then
      return
    elseif has_logs then
      if cost == 1 then
        local unit, new_size = journal.charge(first_quota, stored, journal_at, reply, size)
        if unit then
          return unit, new_size, true
        end
      end
      if journal_at <= #stored then
        stored = without_journal(stored)
        find_data(first_quota, stored)
      end
    elseif journal_at <= #stored then
      return
    end
  end
  local number, new_size, longest, has_no_lists =
    attempt_all(first_quota, stored, first_extra, cost, reply, size)
  if not number then
    return
  end
  local quotas = first_quota.quotas
  if has_logs and has_no_lists then
    -- Adds an empty journal, behind the last log.
    parts[number] = sub(parts[number], 1, 9) .. pack('>I2', #parts[number + quotas]) .. JOURNAL
    parts[number + quotas] = parts[number + quotas] .. pack('>d', now)
  end
  return table.concat(parts, '', 2, number + quotas), new_size, false, longest
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
