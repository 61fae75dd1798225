--[[
segments: the older runs of a large log, as a list of segments of 64 runs. For packed_log.

KEYS    none; the caller passes the key of the list
ARGV    none; the caller passes the log
reply   a table of functions of the log
calls   LLEN, LINDEX; to trim LTRIM; when all has expired UNLINK; for a further segment RPUSH; to renew
calls   PEXPIRE; to give units back LSET
server  Redis 5.0

A segment is packed as the value's data are, with an offset in place of the second: it is added to the
positions of the segment, so that units of another segment can be given back.
]]

local call, unpack, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local floor, RANGE = math.floor, 4294967296

-- Returns the number of segments.
local function count(log)
  if not log.extra_key then
    -- Nothing is written yet: the client sends the check again, with the key of its list.
    error('NOLISTKEY this log needs the key of its list', 0)
  end
  log.cache = {}
  return call('LLEN', log.extra_key)
end

-- Returns the text of a segment.
local function segment(log, number)
  local text = log.cache[number] or call('LINDEX', log.extra_key, string.format('%d', number))
  log.cache[number] = text
  return text
end

local function set(log, number, text)
  log.cache[number] = text
  call('LSET', log.extra_key, string.format('%d', number), text)
end

-- Returns a segment whose positions are what `change` returns for them.
local function changed(log, text, change)
  local parts, size = { sub(text, 1, 16) }, log.run_size
  for at = 17, #text, size do
    local position = unpack('>I4', text, at + size - 4)
    parts[#parts + 1] = sub(text, at, at + size - 5) .. pack('>I4', change((at - 17) / size, position))
  end
  return table.concat(parts)
end

-- Takes units of the run at an index. Those of all later runs are lowered.
local function take(log, index, units, size)
  local number = floor(index / size)
  local first = index - number * size
  set(log, number, changed(log, segment(log, number), function(at, position)
    return at >= first and (position - units) % RANGE or position
  end))
  for later = number + 1, log.segments - 1 do
    local text = segment(log, later)
    local offset = unpack('>I4', text, 9)
    set(log, later, sub(text, 1, 8) .. pack('>I4', (offset - units) % RANGE) .. sub(text, 13))
  end
end

-- Takes all units up to a position, the last of which is of the run at an index.
local function credit(log, index, position, size)
  local number = floor(index / size)
  local text, first = segment(log, number), index - number * size
  local before = (position - unpack('>I4', text, 9)) % RANGE
  text = changed(log, text, function(at, old)
    return at < first and before or old
  end)
  set(log, number, sub(text, 1, 12) .. pack('>I4', before) .. sub(text, 17))
end

-- Removes the segments that have expired or moved to the value, adds one, and renews the time to live.
local function write(log)
  local key, had = log.extra_key, log.segments or 0
  local first, last = log.dropped_segments, log.kept_segments
  if log.renews_list and had > 0 and first < last then
    call('PEXPIRE', key, log.ttl)
  end
  if had > 0 and first >= last then
    call('UNLINK', key)
  elseif first > 0 or last < had then
    call('LTRIM', key, string.format('%d', first), string.format('%d', last - 1))
  end
  if log.pushed then
    call('RPUSH', key, log.pushed)
    if first >= last then
      require('set_ttl')(key, log.ttl)
    end
  end
end

return { count = count, segment = segment, take = take, credit = credit, write = write }
