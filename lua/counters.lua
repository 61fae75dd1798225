--[[
counters: a row, the value with the counters of a key: fixed_window, sliding_counter and gcra, by window, and total. Twin of
src/algorithm/counter_state.rs.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, sorted by header, then by limit
reply   the numbers of each counter of the list, as they are stored, or as of now: the client reads both alike
calls   GET; to charge SETRANGE, SET; after a step back of the clock PEXPIRE, SET
server  Redis 6.0

  expires 4     the second at which the value expires
  length 2, headers   the length of all headers; then code 1, window 6 of each counter; the window of a total is 0
  generation 8, numbers   of each counter, as the file of its algorithm says
  holes         18 bytes each: what was given back of a gcra, see gcra_refund.lua

The generation is the time at which a counter began: no refund of an earlier charge finds its units. Numbers are as of the
last charge. What time has changed since is computed on reading, by the client too: so a refusal writes nothing, and replies
with the numbers. Counters that a list does not ask are carried along.
]]

local HOLE = 18
local FORMATS, NUMBERS = { f = 'ddI4', c = 'ddI4I4', g = 'ddI4dI4I4', t = 'dI4' }, { f = 3, c = 4, g = 6, t = 2 }

-- Returns the tick, in microseconds, in which units times a window is exact, and the ticks of the window, rounded down: the
-- smallest power of ten for which the product is below 2^53. There a quotient never rounds to a whole number that it is not,
-- so its floor and ceil are exact. Twin of src/algorithm/arithmetic.rs.
local function scale(units, window)
  local tick = 1
  -- 1.0 makes it a float in Lua 5.4 too, whose integers would wrap.
  while 1.0 * units * ceil(window / tick) >= 9007199254740992 do
    tick = tick * 10
  end
  return tick, floor(window / tick)
end

-- By algorithm: prepares a quota. `settle(quota, row, at)` moves a counter to now, and returns the units that count, and
-- whether it was later than now. A charge adds to the number `count` behind `at`, and may `note` more by what it was before.
local rules = {}

-- The open row: expires, headers, numbers; its layout; the value, whether it has other headers, and its holes.
local row, layout, text, is_other, holes

-- By its headers, how a row is packed, and where the numbers of each counter start.
local layouts = {}

local function layout_of(headers)
  local made = layouts[headers]
  if not made then
    local format, at, starts = '', 3, {}
    for index = 3, #headers, 7 do
      local header = sub(headers, index, index + 6)
      local code = sub(header, 1, 1)
      -- A call in Lua has at most 8 000 values.
      if #header < 7 or not FORMATS[code] or starts[header] or at > 7000 then
        return
      end
      format, starts[header], at = format .. FORMATS[code], at, at + NUMBERS[code]
    end
    made = { headers = headers, starts = starts, numbers = '>' .. format, format = '>I4c' .. #headers .. format, last = at - 1 }
    made.length, made.at = struct.size(made.format), '' .. 4 + #headers
    layouts[headers] = made
  end
  return made
end

-- Opens a value that is missing, has holes, or other counters than the list: the list's come first in the row.
local function open_other(list)
  local stored, old, headers = nil, nil, sub(list.layout.headers, 3)
  if text then
    stored = #text > 12 and layout_of(sub(text, 5, 6 + unpack('>I2', text, 5)))
    if not stored or #text < stored.length or (#text - stored.length) % HOLE > 0 then
      return false
    end
    old = { unpack(stored.format, text) }
    for index = 3, #stored.headers, 7 do
      local header = sub(stored.headers, index, index + 6)
      headers = list.layout.starts[header] and headers or headers .. header
    end
  end
  row = { old and old[1] or 0, pack('>I2', #headers) .. headers }
  layout = layout_of(row[2])
  if not layout then
    return false
  end
  for header, at in pairs(layout.starts) do
    local from = stored and stored.starts[header]
    for index = 0, NUMBERS[sub(header, 1, 1)] - 1 do
      row[at + index] = from and old[from + index] or 0
    end
  end
  is_other, holes = stored ~= layout, stored and sub(text, stored.length + 1) or ''
  return true
end

-- Writes the row, and returns its numbers. If it is due, it gets a time to live.
local function write(number, is_due, ttl, is_rewound)
  local key, numbers = KEYS[number], pack(layout.numbers, spread(row, 3, layout.last))
  if is_due or is_other then
    local left = row[1] * 1000 - floor(now / 1000)
    row[1] = is_due and max(row[1], expiry(ttl)) or row[1]
    ttl = max(ttl, left)
    text = pack('>I4', row[1]) .. row[2] .. numbers .. holes
    if is_rewound then
      -- A full server accepts PEXPIRE, and then the rest of the script.
      call('PEXPIRE', key, ttl)
    end
    if is_due and not is_rewound then
      call('SET', key, text, 'PX', ttl)
    else
      call('SET', key, text, 'KEEPTTL')
    end
    values[number], is_other = text, false
  else
    call('SETRANGE', key, layout.at, numbers)
    values[number] = true
  end
  return numbers
end

-- Opens the value of a key. Returns whether it is a row.
local function open(list, number)
  text = values[number]
  if text == true then
    text = call('GET', KEYS[number])
  end
  layout, is_other, holes = list.layout, false, ''
  if not text or #text ~= layout.length then
    return open_other(list)
  end
  row = { unpack(layout.format, text) }
  return row[2] == layout.headers or open_other(list)
end

local function room(list, number)
  if list.problem or not open(list, number) then
    return nil, list.problem or WRONG_TYPE
  end
  local quota, left, sum, is_rewound = list, 4294967296, 0, false
  repeat
    local used, is_ahead = quota.settle(quota, row, quota.at)
    quota.used, quota.is_ahead, is_rewound, sum = used, is_ahead, is_rewound or is_ahead, sum + used
    local own = quota.limit - used
    left, quota = own < left and own or left, quota.next
  until not quota
  -- Foreign bytes may be no number.
  if sum ~= sum then
    return nil, WRONG_TYPE
  end
  if is_rewound then
    -- Only counters that are later than now are stored as of now.
    local settled = row
    open(list, number)
    quota = list
    repeat
      if quota.is_ahead then
        quota.settle(quota, row, quota.at)
      end
      quota = quota.next
    until not quota
    write(number, true, list.ttl, true)
    settled[1], row = row[1], settled
  end
  return list.is_closed and -1 or max(left, 0)
end

-- Returns the holes of a counter, oldest first, each its start, end and units; and the bytes of all other holes.
local function split_holes(header)
  local own, others = {}, {}
  for at = 1, #holes, HOLE do
    if sub(holes, at, at + 5) == sub(header, 2) then
      own[#own + 1] = { unpack('>I4I4I4', holes, at + 6) }
    else
      others[#others + 1] = sub(holes, at, at + HOLE - 1)
    end
  end
  return own, table.concat(others)
end

-- Appends the numbers of the counters that a list asks.
local function append(list)
  size = size + 1
  reply[size] = pack(list.layout.numbers, spread(row, 3, list.layout.last))
end

local function charge(list, number, units)
  local quota, needs, ttl = list, list.needs, list.ttl
  repeat
    if not quota.is_view then
      local at, place = quota.at, quota.at + quota.count
      local before, begins, drain = row[place], false, 0
      row[place] = min(before + units, 4294967295)
      if quota.note then
        begins, drain = quota.note(quota, row, at, before)
        needs, ttl = max(needs, drain + floor(drain / 100000)), max(ttl, ceil(2 * drain / 1000) + 1000)
      end
      if begins or quota.used == 0 then
        row[at] = now
        if holes ~= '' then
          -- Holes of a generation that has ended.
          is_other, holes = true, select(2, split_holes(quota.header))
        end
      end
    end
    quota = quota.next
  until not quota
  local numbers = write(number, row[1] * 1000000 < now + needs, ttl)
  size = size + 1
  reply[size] = layout == list.layout and numbers or sub(numbers, 1, struct.size(list.layout.numbers))
end

kinds.counters = function(list)
  local headers, quota, last = '', list, nil
  repeat
    -- A quota with the header of the one before it is decided by the same counter, which the lower limit charges.
    quota.is_view = last and quota.header == last.header
    headers = quota.is_view and headers or headers .. quota.header
    rules[quota.algorithm](quota)
    list.needs, list.problem = max(list.needs, quota.needs), list.problem or quota.problem
    quota, last = quota.next, quota
  until not quota
  list.layout = layout_of(pack('>I2', #headers) .. headers)
  if not list.layout then
    list.layout, list.problem = layout_of('\0\0'), 'ERR too many counters of one key'
  end
  quota = list
  repeat
    quota.at, quota = list.layout.starts[quota.header], quota.next
  until not quota
  list.room, list.charge, list.refuse = room, charge, append
end
