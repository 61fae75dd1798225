--[[
log: a value with the times of units, of sliding_log and of sliding_buckets. Twin of src/algorithm/log.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, of which the first has the longest window
reply   a charge: of each quota used, reset; of buckets also generation, position. A refusal: used, wait, reset
calls   GET; of a long value GETRANGE, STRLEN, EXISTS; to charge APPEND, SETRANGE, SET; after a step back of the clock PEXPIRE, SET
server  Redis 6.0

  expires 4     the second at which the value expires
  generation 8  of buckets, when the log began or was reset, credited or moved; else 0
  'l' 1, longest 8, largest 4   the longest window that charged, and the largest limit that charged with it, or the
                units that were charged beyond it
  before 4      the position before the first run
  time 8, position 4   of each run, oldest first

  's' 1, longest 8, largest 4   of a log with shares
  columns 1, id 4 of each column   the shares that have units in the log
  before 4, before 4 of each column
  time 8, position 4, position 4 of each column

A run is the units of one time. Its position is the number of units charged up to and with it, modulo 2^32, so the units of
any runs in a row are one subtraction. Each quota is a window over the runs: a unit counts for as long as the window, but not
longer than the longest that charged. A unit of a bucket is charged at the last moment of the bucket.

A log with shares has a column for each share that was charged: a position behind the total one. Without columns it is an
'l'. A list that knows shares has the id of the one that asks, or zeros, behind the header of its quotas, and then, of each share
of the quota, its id 4, reserve 4 and bound 4.

A charge drops runs when half of all can go: those older than the longest window, and, of those that no window of the list
reaches, all but the newest `largest` units. A value of a list that `is_long` is read in pages of 16 runs.
]]

-- The open value: its text, or its first page and its pages; the fields of its header; the runs, the oldest time, the newest
-- time, and the last position.
local text, pages, expires, generation, longest, largest, before, runs, oldest, newest, last

-- The columns of the open value, and what only these need. False for a value without columns that a list without shares asks.
local columns = false

-- Returns the time of the run before, the position before a run, its time, and its position. For the first run,
-- the time before belongs to no run, and the position before is the end of the header.
local function run_at(index)
  if columns then
    return columns.run_at(index)
  elseif not pages then
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

-- Creates the columns: here, because Lua takes its time to create a function.
local function create_columns()
  -- Not those of the prelude, see shares.lua.
  local call, unpack, pack, sub, floor, max = redis.call, struct.unpack, struct.pack, string.sub, math.floor, math.max
  local own, head, width, two_runs, format, shares, latest = {}, 29, 12, '', '', {}, nil

  -- Sets the ids of the columns. Returns how many runs a value of this length has.
  own.set = function(ids, length)
    local bytes = #ids
    if ids ~= own.ids then
      head, width, shares = bytes > 0 and 30 + 2 * bytes or 29, 12 + bytes, {}
      two_runs, format = '>dI4' .. string.rep('x', bytes) .. 'dI4', '>' .. string.rep('I4', bytes / 4 + 1)
      own.ids, own.head, own.width = ids, head, width
      for at = 1, bytes, 4 do
        shares[#shares + 1] = sub(ids, at, at + 3)
      end
    end
    latest = nil
    return (length - head) / width
  end

  -- Returns the bytes that hold the run before a run, and where it starts in them.
  local function before_run(index)
    if not pages then
      return text, head - width + 1 + width * index
    end
    local number = floor(index / 16)
    if not pages[number] then
      local from = head - width + 16 * width * number
      pages[number] = call('GETRANGE', pages.key, from, from + 17 * width - 1)
    end
    return pages[number], width * (index - 16 * number) + 1
  end

  own.run_at = function(index)
    local bytes, at = before_run(index)
    return unpack(two_runs, bytes, at)
  end

  -- Returns the positions before a run: the total one, and that of each column.
  local function positions_at(index)
    local bytes, at = before_run(index)
    local row = { unpack(format, bytes, at + 8) }
    -- Where the next value would start.
    row[#row] = nil
    return row
  end
  own.positions_at = positions_at

  -- Returns a run.
  own.pack = function(time, row)
    return pack('>d', time) .. pack(format, spread(row))
  end

  -- Returns the place of a share in positions.
  local function column_of(id)
    for column = 1, id and #shares or 0 do
      if shares[column] == id then
        return column + 1
      end
    end
  end
  own.column_of = column_of

  -- Returns the units that the share that asks may still charge when all runs before a run are gone.
  local function room_of(quota, index)
    latest = latest or positions_at(runs)
    local from, to, units = positions_at(index), latest, {}
    for column = 1, #shares do
      units[shares[column]] = (to[column + 1] - from[column + 1]) % 4294967296
    end
    return quota.room_of((to[1] - from[1]) % 4294967296, units)
  end
  own.room_of = room_of

  -- Returns the microseconds until the share that asks may charge so many units, or nothing if it never may.
  own.has_room_in = function(quota, units)
    local from, to = quota.first + 1, runs
    if from > to then
      return
    elseif room_of(quota, from) >= units then
      to = from
    elseif room_of(quota, to) < units then
      return
    end
    while from < to do
      local middle = floor((from + to) / 2)
      if room_of(quota, middle) >= units then
        to = middle
      else
        from = middle + 1
      end
    end
    return select(3, run_at(from - 1)) + quota.reach - now
  end

  -- Returns the microseconds until more is left to the share that asks.
  own.more_in = function(quota)
    return own.has_room_in(quota, max(quota.limit - quota.used, 0) + 1)
  end

  -- Rewrites the open value from a run on, if a share that is charged has no column, or a column no units. Returns where
  -- its runs begin then.
  own.replace = function(first, share)
    local from, to, kept, ids, parts = positions_at(first), positions_at(runs), {}, '', {}
    for column = 1, #shares do
      local id = shares[column]
      if id == share or to[column + 1] ~= from[column + 1] then
        kept[#kept + 1], ids = column + 1, ids .. id
      end
    end
    if share and not (column_of(share) or #kept > 63) then
      kept[#kept + 1], ids = 0, ids .. share
    end
    if ids == own.ids then
      return first
    elseif pages then
      text, pages = call('GET', pages.key), nil
    end
    for index = first, runs do
      local old, at = positions_at(index), head - width + 1 + width * index
      local row = { old[1] }
      for column = 1, #kept do
        row[column + 1] = old[kept[column]] or 0
      end
      parts[#parts + 1] = index > first and sub(text, at, at + 7) or ''
      parts[#parts + 1] = pack('>' .. string.rep('I4', #row), spread(row))
    end
    own.set(ids, 0)
    text, runs = string.rep('\0', head - width + 8) .. table.concat(parts), runs - first
    return 0
  end
  return own
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
  local head, width = columns and columns.head or 29, columns and columns.width or 12
  -- The positions before a run stand in front of it.
  text = pack('>I4d', expiry(ttl), generation) .. sub(text, 13, head - width + 8)
    .. sub(text, head - width + 9 + width * from, head + width * to) .. pack('>d', list.clock) .. sub(text, 8 - width)
  -- A full server accepts PEXPIRE, and then the rest of the script.
  call('PEXPIRE', key, ttl)
  call('SET', key, text, 'KEEPTTL')
  values[number], expires, before, runs, newest = text, expiry(ttl), from_before, to - from + 1, list.clock
  oldest = unpack('>d', text, head + 1)
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
  if columns or list.share ~= nil or text and sub(text, 13, 13) == 's' then
    local count = text and sub(text, 13, 13) == 's' and string.byte(text, 26) or 0
    local ids = pages and call('GETRANGE', pages.key, 26, 25 + 4 * count) or sub(text or '', 27, 26 + 4 * count)
    columns, pages = columns or create_columns(), pages and { key = pages.key, [0] = count == 0 and pages[0] or nil }
    runs = #ids == 4 * count and columns.set(ids, length) or 0
  end
  if not text then
    expires, generation, longest, largest, before, runs, oldest, newest, last = 0, 0, 0, 0, 0, 0, 0, 0, 0
  elseif runs < 1 or runs % 1 > 0 then
    return nil, WRONG_TYPE
  else
    local width = 12
    expires, generation, mark, longest, largest, before, oldest = unpack('>I4dc1dI4I4d', text)
    if mark == 's' then
      mark, width = columns.ids ~= '' and 'l', columns.width
      before, oldest = select(2, run_at(0))
    end
    newest, last = unpack('>dI4', pages and call('GETRANGE', pages.key, -width, '-1') or text, pages and 1 or length - width + 1)
    if mark ~= 'l' or not (longest >= 1000 and longest < 1e15 and oldest >= 0 and newest >= oldest and newest < 1e16) then
      return nil, WRONG_TYPE
    elseif newest > list.clock then
      rewind(list, number)
    end
  end
  local left, quota = nil, list
  repeat
    quota.reach = min(quota.window, longest)
    local first, time, position = first_after(now - quota.reach)
    local used = (last - position) % 4294967296
    quota.first, quota.before, quota.used, quota.time = first, position, used, time
    if quota.room_of then
      used = quota.limit - (text and columns.room_of(quota, first) or quota.most)
      quota.used = used
    end
    local own = quota.limit - used
    left, quota = left and left < own and left or own, quota.next
  until not quota
  return list.is_closed and -1 or max(left, 0)
end

local function charge(list, number, units)
  local key, clock, is_changed, used = KEYS[number], list.clock, false, (last - list.before) % 4294967296
  -- Positions count modulo 2^32.
  units = min(units, 4294967295 - used)
  if units == 0 then
    return
  end
  -- Units that were charged beyond the limit are kept as those of a limit are.
  local kept = max(list.limit, used + units)
  if list.window > longest or list.window == longest and kept > largest then
    longest, largest, is_changed = list.window, kept, true
  end
  local quota, is_new = list, not text
  while columns and quota do
    -- As of before the charge: it takes as many units from each later time.
    quota.reach = quota.window
    quota.reset = quota.room_of and (not is_new and columns.more_in(quota) or clock + quota.window - now)
    quota = quota.next
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
  local rewrites = is_changed or is_due or 2 * first >= runs or (last - before) % 4294967296 + units >= 4294967296
  local head, width, mark, front = 29, 12, 'l', nil
  if columns then
    text = text or string.rep('\0', 29)
    rewrites = rewrites or list.share and not columns.column_of(list.share)
    if rewrites then
      first = columns.replace(first, list.share)
    end
    local row, column, ids = columns.positions_at(runs), columns.column_of(list.share), columns.ids
    row[1] = (row[1] + units) % 4294967296
    if column then
      row[column] = (row[column] + units) % 4294967296
    end
    run, head, width = columns.pack(clock, row), columns.head, columns.width
    if ids ~= '' then
      mark, front = 's', string.char(#ids / 4) .. ids .. sub(columns.pack(0, columns.positions_at(first)), 9)
    end
  end
  if rewrites then
    local ttl = ceil(2 * longest / 1000) + 1000
    local from, to = head + width * first, head + width * (newest == clock and runs - 1 or runs)
    local rest = runs > 0 and from < to and (pages and call('GETRANGE', key, from, to - 1) or sub(text, from + 1, to)) or ''
    generation = is_new and list.bucket > 0 and now or generation
    text = pack('>I4dc1dI4', is_due and expiry(ttl) or expires, generation, mark, longest, largest)
      .. (front or pack('>I4', position)) .. rest .. run
    if is_due then
      call('SET', key, text, 'PX', ttl)
    else
      call('SET', key, text, 'KEEPTTL')
    end
    values[number] = list.is_long or text
  else
    if newest == clock then
      call('SETRANGE', key, head + width * (runs - 1), run)
    else
      call('APPEND', key, run)
    end
    values[number] = true
  end
  quota = list
  repeat
    reply[size + 1] = quota.used + units
    reply[size + 2] = columns and quota.reset or (quota.used > 0 and quota.time or clock) + quota.window - now
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
  return time + quota.reach - now
end

local function refuse(list, _, cost)
  local quota = list
  repeat
    local used, limit, wait, reset = quota.used, quota.limit, 0, 0
    if max(cost, 1) > (quota.most or limit) then
      wait = -1
    elseif cost > 0 and used + cost > limit then
      wait = quota.room_of and (columns.has_room_in(quota, cost) or -1) or expires_in(quota, used + cost - limit)
    end
    if quota.room_of then
      reset = columns.more_in(quota) or 0
    elseif used > limit then
      reset = limit > 0 and expires_in(quota, used - limit + 1) or 0
    elseif used > 0 then
      reset = quota.time + quota.reach - now
    end
    reply[size + 1], reply[size + 2], reply[size + 3] = min(used, 4294967295), wait, reset
    size, quota = size + 3, quota.next
  until not quota
end

kinds.log = function(list)
  local quota = #list.header > 9 and list
  while quota do
    read_shares(quota, 10)
    list.is_closed = list.is_closed or quota.most == 0
    quota = quota.next
  end
  if list.bucket > 0 then
    list.clock = now - now % list.bucket + list.bucket - 1
  end
  list.room, list.charge, list.refuse = room, charge, refuse
end
