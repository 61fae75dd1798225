--[[
segments: the older runs of a large log, in segments of equal size. The oldest segment is in the value, the
others are a list. For packed_log.

KEYS    none; the caller passes the key of the list
ARGV    none; the caller passes the log
reply   a table of functions of the log
calls   LLEN, LINDEX; to trim LTRIM; when no more is left, and before the first segment, UNLINK; for further
calls   segments RPUSH; to renew PEXPIRE; to give units back LSET
server  Redis 5.0

Segments are numbered from 0, the one in the value. A segment is packed as the runs in the value are, with
an offset in place of the second.
]]

local unpack_list = table.unpack or unpack
local call, unpack, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local floor, RANGE = math.floor, 4294967296
local SEGMENT, _, _, run_size_of = require('runs')
local open_piece, _, _, _, with_positions = require('piece')

local function parse(log, text)
  local has_unit_runs = #text == 16 + SEGMENT * run_size_of(log.is_wide, true)
  return open_piece(text, log.is_wide, has_unit_runs, unpack('>I4', text, 9))
end

-- Takes the segment in the value, if there is one, and returns the number of all.
local function open(log, text)
  log.cache = {}
  if not text then
    return 0
  elseif not log.extra_key then
    -- Nothing is written yet: the client sends the check again, with the key of its list.
    error('NOLISTKEY this log needs the key of its list', 0)
  end
  log.cache[0] = parse(log, text)
  return 1 + call('LLEN', log.extra_key)
end

local function segment(log, number)
  local piece = log.cache[number]
  if not piece then
    piece = parse(log, call('LINDEX', log.extra_key, string.format('%d', number - 1)))
    log.cache[number] = piece
  end
  return piece
end

local function set(log, number, text)
  log.cache[number] = parse(log, text)
  if number > 0 then
    call('LSET', log.extra_key, string.format('%d', number - 1), text)
  end
end

-- Takes units of the run at an index. Those of all later runs are lowered.
local function take(log, index, units)
  local number = floor(index / SEGMENT)
  local first = index - number * SEGMENT
  set(log, number, with_positions(segment(log, number), function(at, position)
    return at >= first and (position - units) % RANGE or position
  end))
  for later = number + 1, log.listed / SEGMENT - 1 do
    local piece = segment(log, later)
    local text = piece.text
    set(log, later, sub(text, 1, 8) .. pack('>I4', (piece.offset - units) % RANGE) .. sub(text, 13))
  end
end

-- Takes all units up to a position, the last of which is of the run at an index.
local function credit(log, index, position)
  local number = floor(index / SEGMENT)
  local piece, first = segment(log, number), index - number * SEGMENT
  local before = (position - piece.offset) % RANGE
  local text = with_positions(piece, function(at, old)
    return at < first and before or old
  end)
  set(log, number, sub(text, 1, 12) .. pack('>I4', before) .. sub(text, 17))
end

-- Adds segments of the oldest runs in the value, as many as leave at least one run. Returns the text of the
-- rest, or nothing if the list has to be trimmed first: so each write changes it once, and can be undone.
local function push(log, tail, runs)
  if log.dropped > 0 or log.kept_segments < log.segments then
    return
  end
  local number, size, at, pushed = log.listed / SEGMENT, SEGMENT * tail.run_size, 17, {}
  local text, before = tail.text, tail.before
  local base = sub(text, 1, 8)
  while runs > SEGMENT do
    local piece = base .. pack('>I4I4', 0, before) .. sub(text, at, at + size - 1)
    log.cache[number] = parse(log, piece)
    if number > 0 then
      pushed[#pushed + 1] = piece
    end
    before = tail.has_unit_runs and (before + SEGMENT) % RANGE or unpack('>I4', piece, #piece - 3)
    number, at, runs = number + 1, at + size, runs - SEGMENT
  end
  log.listed, log.pushed = number * SEGMENT, pushed[1] and pushed
  return base .. pack('>I4I4', 0, before) .. sub(text, at)
end

-- Removes the segments that have expired or moved to the value, adds those of a push, and renews the time to
-- live. A list begins empty: the one that is there may have outlived its value, which expired or was evicted.
local function write(log)
  local key, first, last = log.extra_key, log.dropped, log.kept_segments
  local had, left = math.max(log.segments - 1, 0), math.max(last - first - 1, 0)
  if log.renews_list and left > 0 then
    call('PEXPIRE', key, log.ttl)
  end
  if left == 0 and had > 0 then
    call('UNLINK', key)
  elseif left < had then
    call('LTRIM', key, string.format('%d', first), string.format('%d', last - 2))
  end
  if log.pushed then
    if log.segments == 0 and call('LLEN', key) > 0 then
      call('UNLINK', key)
    end
    call('RPUSH', key, unpack_list(log.pushed))
    if left == 0 then
      require('set_ttl')(key, log.ttl)
    end
  end
end

return { open = open, segment = segment, take = take, credit = credit, push = push, write = write }
