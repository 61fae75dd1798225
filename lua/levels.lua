--[[
levels: decides the entries of a run of several levels. The usual entries are charged together: each value is
written once, however many entries share it. Everything else is for multi_quota, which decides one entry.

KEYS    the keys of the entries
ARGV    none; the caller passes the arguments of the call
reply   a function that takes what the runs of a call share, and returns decide_run
calls   to add a run to a log APPEND; to undo a write SET or UNLINK; for a value that an earlier entry changed
calls   GET; those of fast_path, fast_path_several and multi_quota
server  Redis 6.0

If a value has room for all checks of a run that ask it, it admits each of them, in whatever order. So each value is
charged the units of all its checks at once, and replies to the last of them. All checks of a call are decided
at one time, so the replies to the others follow. The entries of a value that lacks the room, or is unusual, are
decided one by one, after the others. If a write fails, those before it are undone, and all entries are decided
one by one.
]]

local call, unpack = redis.call, struct.unpack
local decide_any, _, judge_level = require('multi_quota')
local _, renew, write_range = require('fast_path')
local refuse, forget

-- The functions of each file of a fast path.
local files = {}

-- As in decide.
local MAX_ENTRY_UNITS = 100000

-- The arguments of the call, its lists of quotas, what is stored in its values, and the reply.
local args, quota_lists, values, reply

-- Attempts to charge a single quota. Returns what to write: the new data or, as the third value says, a run to
-- append. The fourth value is the second at which the value expires.
local function attempt_one(quota, stored, first_extra, cost, reply, size)
  local expires, found
  if stored then
    if #stored > 15 then
      expires, found = unpack('>I4c11', stored)
    end
    if found ~= quota.last_header then
      return
    end
  end
  if quota.extra > 0 then
    quota.extra_key = KEYS[first_extra]
  end
  local data, new_size, is_run =
    quota.attempt(quota, stored, 16, stored and #stored, cost, 1, reply, size)
  return data, new_size, is_run, expires
end

local function write_one(quota, key, stored, data, is_run, expires)
  if not stored or expires * 1000000 < now + quota.needs then
    return renew(quota, key, stored, data, is_run)
  elseif is_run then
    call('APPEND', key, data)
    return true
  end
  return write_range(key, '15', stored, data)
end

-- Finds the values of each level, in the order in which they first stand in the arguments, and counts their checks.
-- Entries to `skip` do not count.
local function count_checks(levels, entries, count, place, skip)
  local step = 2 * #levels
  for index = 1, #levels do
    local checks, places, at = {}, {}, place + 2 * index - 2
    for entry = 1, entries do
      if not skip[entry] then
        local number = args[at]
        local known = checks[number]
        if known then
          checks[number] = known + count
        else
          checks[number], places[#places + 1] = count, at
        end
      end
      at = at + step
    end
    levels[index].checks, levels[index].places = checks, places
  end
end

-- Looks at a value of which something unusual is stored. Returns how many numbers its reply has, or nothing if it
-- lacks the room for a charge.
local function look(charge)
  local found, size, quota = {}, 0, charge.quota
  local wanted = { quota = quota, cost = 0, value = charge.value, extra = charge.extra }
  local succeeded, admitted = pcall(decide_any, { wanted }, 1, found, 0, values)
  if not succeeded or admitted == 0 then
    return
  end
  repeat
    if found[size + 1] + charge.cost > quota.limit then
      return
    end
    size, quota = size + (quota.has_receipt and 4 or 2), quota.next
  until not quota
  return size
end

-- Attempts to charge each value the units of all its checks, and appends its reply. Returns the usual charges, the
-- unusual ones, the values that lack the room, if there are any, and the size of the reply.
local function attempt_all(levels, size)
  local usual, unusual, lacking, is_charged = {}, {}, nil, {}
  for index = 1, #levels do
    local level = levels[index]
    local quota, attempt, places, checks = level.quota, level.attempt, level.places, level.checks
    for position = 1, #places do
      local place = places[position]
      local number, extra = args[place], args[place + 1]
      local units, stored = level.cost * checks[number], values[number]
      if stored == true then
        stored = call('GET', KEYS[number])
      end
      local data, new_size, is_appended, expiry =
        attempt(quota, stored, extra, units, reply, size)
      if data and data ~= true and not is_charged[number] then
        usual[#usual + 1] = {
          level = level,
          number = number,
          stored = stored,
          data = data,
          is_appended = is_appended,
          expiry = expiry,
        }
        size = new_size
      else
        local charge = { quota = quota, cost = units, value = number, extra = extra, at = size }
        charge.length = data ~= true and not is_charged[number] and look(charge)
        if charge.length then
          unusual[#unusual + 1] = charge
          -- Leaves room for its reply.
          for field = 1, charge.length do
            reply[size + field] = 0
          end
          size = size + charge.length
        else
          lacking = lacking or {}
          lacking[number] = true
        end
      end
      is_charged[number] = true
    end
  end
  return usual, unusual, lacking, size
end

-- Marks the entries that ask one of these values.
local function mark(marked, lacking, levels, entries, place)
  for entry = 1, entries do
    for _ = 1, #levels do
      marked[entry] = marked[entry] or lacking[args[place]]
      place = place + 2
    end
  end
end

-- Writes the charges. The unusual ones come last and as one check of several levels: all of them are charged, or
-- none. Returns whether all are, and counts the usual ones in `usual.written`.
local function write_all(usual, unusual)
  for index = 1, #usual do
    local charge = usual[index]
    local level, number = charge.level, charge.number
    values[number] = level.write(
      level.quota,
      KEYS[number],
      charge.stored,
      charge.data,
      charge.is_appended,
      charge.expiry
    )
    usual.written = index
  end
  local replies, from = {}, 0
  if #unusual > 0 and decide_any(unusual, 1, replies, 0, values) == 0 then
    return false
  end
  for index = 1, #unusual do
    local charge = unusual[index]
    for field = 1, charge.length do
      reply[charge.at + field] = replies[from + field]
    end
    from = from + charge.length
  end
  return true
end

local function undo(usual)
  for index = usual.written, 1, -1 do
    local number, stored = usual[index].number, usual[index].stored
    -- One that cannot be undone does not keep the others from it.
    if stored then
      pcall(call, 'SET', KEYS[number], stored, 'KEEPTTL')
    else
      pcall(call, 'UNLINK', KEYS[number])
    end
    values[number] = stored
  end
end

-- Removes the end of the reply.
local function truncate(size)
  for index = #reply, size + 1, -1 do
    reply[index] = nil
  end
end

-- Appends the numbers of the entries that are `left`. Returns how many, and the size of the reply.
local function append_left(left, entries, size)
  local head = size + 1
  size = head
  for entry = 1, entries do
    if left[entry] then
      size = size + 1
      reply[size] = entry
    end
  end
  reply[head] = size - head
  return size
end

-- Charges the usual entries together, and appends which are `left` and the replies of the values. Returns the size of
-- the reply, or nothing if nothing was charged.
local function charge_together(levels, entries, count, place, left, size)
  for _ = 1, 2 do
    count_checks(levels, entries, count, place, left)
    local usual, unusual, lacking, new_size =
      attempt_all(levels, append_left(left, entries, size))
    if not lacking then
      usual.written = 0
      local succeeded, are_charged = pcall(write_all, usual, unusual)
      if succeeded and are_charged then
        truncate(new_size)
        return new_size
      end
      undo(usual)
      return
    end
    truncate(size)
    mark(left, lacking, levels, entries, place)
  end
end

-- Decides an entry that is not charged together with others. Returns the size of the reply.
local function decide_alone(levels, count, place, size)
  local head = size + 1
  reply[head] = 0
  for index = 1, #levels do
    local level = levels[index]
    level.value, level.extra = args[place + 2 * index - 2], args[place + 2 * index - 1]
    if count > 1 and level.cost * count > MAX_ENTRY_UNITS then
      return require('failure')(reply, head, 'ERR an entry of more than 100000 units')
    end
  end
  if levels.is_usual then
    if not refuse then
      refuse, forget = require('refused_levels')(judge_level, args, values, reply)
    end
    local new_size = refuse(levels, place, size)
    if new_size then
      return new_size
    end
    forget(levels, place)
  end
  local succeeded, result, new_size = pcall(decide_any, levels, count, reply, head, values)
  if not succeeded then
    return require('failure')(reply, head, result)
  end
  reply[head] = result
  return new_size
end

-- Sets how a level is charged. Its functions return what those of fast_path_several do.
local function set_halves(level)
  local path = level.quota.path
  if path == 'fast_path' then
    level.attempt, level.write = attempt_one, write_one
  elseif path then
    local file = files[path] or { require(path) }
    files[path], level.attempt, level.write = file, file[2], file[3]
  end
end

-- Returns the levels of a run, which begin at `at` in the arguments.
local function make_levels(number_of_levels, count, at)
  local levels = { is_usual = true }
  for index = 1, number_of_levels do
    local quota, cost = quota_lists[args[at]], args[at + 1]
    levels[index] = { quota = quota, cost = cost }
    set_halves(levels[index])
    levels.is_usual = levels.is_usual
      and quota.path
      and cost > 0
      and (count == 1 or cost * count <= MAX_ENTRY_UNITS)
    at = at + 2
  end
  return levels, at
end

-- Decides the entries of a run, whose levels begin at `at` in the arguments. Returns the size of the reply, and where
-- the next run begins.
local function decide_run(entries, count, number_of_levels, at, size)
  local levels, place = make_levels(number_of_levels, count, at)
  local left, succeeded, new_size = {}, false, nil
  if levels.is_usual then
    succeeded, new_size = pcall(charge_together, levels, entries, count, place, left, size)
  end
  if not succeeded or not new_size then
    truncate(size)
    for entry = 1, entries do
      left[entry] = true
    end
    new_size = append_left(left, entries, size)
  end
  size = new_size
  for entry = 1, entries do
    if left[entry] then
      size = decide_alone(levels, count, place, size)
    end
    place = place + 2 * number_of_levels
  end
  return size, place
end

return function(...)
  args, quota_lists, values, reply = ...
  return decide_run
end
