--[[
log: a value with the times of units, of sliding_log and of sliding_buckets. Twin of src/algorithm/log.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, of which the first has the longest window
reply   a charge: of each quota used, reset; of buckets also generation, position. A refusal: used, wait, reset
calls   GET; of a long value GETRANGE, STRLEN, EXISTS; to charge APPEND, SETRANGE, SET; after a step back of the clock PEXPIRE, SET
server  Redis 6.0

  expires 4     the second at which the value expires
  generation 8  of buckets, when the log began or was reset, credited or moved; else 0
  'l' 1, longest 8, largest 4   the longest window that was asked, and the largest limit that was asked with it
  before 4      the position before the first run
  time 8, position 4   of each run, oldest first

A run is the units of one time. Its position is the number of units charged up to and with it, modulo 2^32, so the units of
any runs in a row are one subtraction. Each quota is a window over the runs: a unit counts for as long as the window. A unit
of a bucket is charged at the last moment of the bucket.

A charge drops runs when half of all can go: those older than the longest window, and, of those that no window of the list
reaches, all but the newest `largest` units. A value of a list that `is_long` is read in pages of 16 runs.
]]

-- The open value: its text, or its first page and its pages; the fields of its header; the runs, the oldest time, the newest
-- time, and the last position.
local text, pages, expires, generation, longest, largest, before, runs, oldest, newest, last

-- Returns the time of the run before, the position before a run, its time, and its position. For the first run,
-- the time before belongs to no run, and the position before is the end of the header.
local function run_at(index)
  if not pages then
    return unpack('>dI4dI4', text, 18 + 12 * index)
  end
  local number = floor(index / 16)
  local page = pages[number]
  if not page then
    local from = 17 + 192 * number
    page = call('GETRANGE', pages.key, from, from + 203)
    pages[number] = page
  end
  return unpack('>dI4dI4', page, 12 * index - 192 * number + 1)
end

-- Returns the first run after a time, its time, and the position before it.
local function first_after(edge)
  if newest <= edge then
    return runs, 0, last
  elseif oldest > edge then
    return 0, oldest, before
  end
  -- It is from run `from` to run `to`. Runs are spaced about evenly: the first probes are guesses between the times of the run
  -- before `from`, and of `to`.
  local from, to, from_time, to_time, guesses = 1, runs - 1, oldest, newest, 0
  while true do
    local probe = (edge - from_time) / (to_time - from_time) * (to - from + 1)
    probe, guesses = from + (probe - probe % 1), guesses + 1
    if guesses > 6 or not (probe >= from and probe <= to) then
      probe = floor((from + to) / 2)
    end
    local earlier, position, time = run_at(probe)
    if from >= to or earlier <= edge and time > edge then
      return probe, time, position
    elseif time > edge then
      to, to_time = probe - 1, earlier
    else
      from, from_time = probe + 1, time
    end
  end
end

-- Returns the last run from `from` to `to` from which on there are at least so many units before a position, or `from`.
local function last_with(units, position, from, to)
  while from < to do
    local middle = ceil((from + to) / 2)
    local _, own = run_at(middle)
    if (position - own) % 4294967296 >= units then
      from = middle
    else
      to = middle - 1
    end
  end
  return from
end

-- Moves the runs later than the clock to the clock, so that none counts for longer than a window, and drops those that had
-- expired at the newest.
local function rewind(list, number)
  local key = KEYS[number]
  if pages then
    text, pages = call('GET', key), nil
  end
  -- The newest bucket began earlier than its last moment.
  local from, _, from_before = first_after(newest - max(list.bucket - 1, 0) - longest)
  local to = max(first_after(list.clock - 1), from)
  local ttl = ceil(2 * longest / 1000) + 1000
  generation = list.bucket > 0 and now or 0
  text = pack('>I4d', expiry(ttl), generation) .. sub(text, 13, 25) .. pack('>I4', from_before)
    .. sub(text, 30 + 12 * from, 29 + 12 * to) .. pack('>dI4', list.clock, last)
  -- A full server accepts PEXPIRE, and then the rest of the script.
  call('PEXPIRE', key, ttl)
  call('SET', key, text, 'KEEPTTL')
  values[number], expires, before, runs, newest = text, expiry(ttl), from_before, to - from + 1, list.clock
  oldest = unpack('>d', text, 30)
end

local function room(list, number)
  text, pages = values[number], nil
  if list.is_long then
    text = redis.pcall('GETRANGE', KEYS[number], '0', '220')
  elseif text == true or text == nil then
    text = redis.pcall('GET', KEYS[number])
  end
  local length, mark = 0, nil
  if type(text) == 'table' then
    return nil, text.err
  elseif text then
    length = #text
    if list.is_long and length == 221 then
      length, pages = call('STRLEN', KEYS[number]), { key = KEYS[number], [0] = sub(text, 18) }
    elseif list.is_long and length == 0 and call('EXISTS', KEYS[number]) == 0 then
      text = false
    end
  end
  runs = (length - 29) / 12
  if not text then
    expires, generation, longest, largest, before, runs, oldest, newest, last = 0, 0, 0, 0, 0, 0, 0, 0, 0
  elseif runs < 1 or runs % 1 > 0 then
    return nil, WRONG_TYPE
  else
    expires, generation, mark, longest, largest, before, oldest = unpack('>I4dc1dI4I4d', text)
    newest, last = unpack('>dI4', pages and call('GETRANGE', pages.key, '-12', '-1') or text, pages and 1 or length - 11)
    if mark ~= 'l' or not (longest >= 1000 and longest < 1e15 and oldest >= 0 and newest >= oldest and newest < 1e16) then
      return nil, WRONG_TYPE
    elseif newest > list.clock then
      rewind(list, number)
    end
  end
  local left, quota = nil, list
  repeat
    local first, time, position = first_after(now - quota.window)
    local used = (last - position) % 4294967296
    quota.first, quota.before, quota.used, quota.time = first, position, used, time
    local own = quota.limit - used
    left, quota = left and left < own and left or own, quota.next
  until not quota
  return left
end

local function charge(list, number, units)
  local key, clock, is_changed = KEYS[number], list.clock, false
  if list.window > longest or list.window == longest and list.limit > largest then
    longest, largest, is_changed = list.window, list.limit, true
  end
  -- The first run to keep, and the position before it.
  local first, position, run = list.first, list.before, pack('>dI4', clock, (last + units) % 4294967296)
  if longest > list.window then
    first = last_with(largest, position, (first_after(now - longest)), first - 1)
  end
  if (last - before) % 4294967296 + units >= 4294967296 then
    first = last_with(4294967296 - units, last, first - 1, list.first - 1) + 1
  end
  if first < list.first then
    position = select(2, run_at(first))
  end
  local is_due = expires * 1000000 < clock + longest
  if is_changed or is_due or 2 * first >= runs or (last - before) % 4294967296 + units >= 4294967296 then
    local ttl = ceil(2 * longest / 1000) + 1000
    local from, to = 29 + 12 * first, 29 + 12 * (newest == clock and runs - 1 or runs)
    local kept = runs > 0 and from < to and (pages and call('GETRANGE', key, from, to - 1) or sub(text, from + 1, to)) or ''
    generation = runs == 0 and list.bucket > 0 and now or generation
    text = pack('>I4dc1dI4I4', is_due and expiry(ttl) or expires, generation, 'l', longest, largest, position) .. kept .. run
    if is_due then
      call('SET', key, text, 'PX', ttl)
    else
      call('SET', key, text, 'KEEPTTL')
    end
    values[number] = list.is_long or text
  else
    if newest == clock then
      call('SETRANGE', key, 17 + 12 * runs, run)
    else
      call('APPEND', key, run)
    end
    values[number] = true
  end
  local quota = list
  repeat
    reply[size + 1], reply[size + 2] = quota.used + units, (quota.used > 0 and quota.time or clock) + quota.window - now
    size = size + 2
    if list.bucket > 0 then
      reply[size + 1], reply[size + 2], size = generation, clock, size + 2
    end
    quota = quota.next
  until not quota
end

-- Returns the microseconds until a unit expires, by its number from the oldest that counts in the window of a quota.
local function expires_in(quota, unit)
  local time = unit > 1 and select(3, run_at(last_with(quota.used - unit + 1, last, quota.first, runs - 1))) or quota.time
  return time + quota.window - now
end

local function refuse(list, _, cost)
  local quota = list
  repeat
    local used, limit, wait, reset = quota.used, quota.limit, 0, 0
    if used > limit then
      reset = limit > 0 and expires_in(quota, used - limit + 1) or 0
    elseif used > 0 then
      reset = quota.time + quota.window - now
    end
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      wait = expires_in(quota, used + cost - limit)
    end
    reply[size + 1], reply[size + 2], reply[size + 3] = used, wait, reset
    size, quota = size + 3, quota.next
  until not quota
end

kinds.log = function(list)
  if list.bucket > 0 then
    list.clock = now - now % list.bucket + list.bucket - 1
  end
  list.room, list.charge, list.refuse = room, charge, refuse
end
