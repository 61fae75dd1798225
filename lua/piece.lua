--[[
piece: a piece of a log: the newest runs, which are in the value, or a segment. For packed_log and segments.

KEYS    none
ARGV    none; the caller passes the piece
reply   open_piece, time_in, position_in, first_later_in, with_positions
calls   none
server  any

Each run of a piece with `has_unit_runs` is one unit, and only its time is stored. The offset of a segment is
added to its positions, so that units of an earlier segment can be given back.
]]

local unpack, pack, sub, RANGE = struct.unpack, struct.pack, string.sub, 4294967296
local _, _, _, run_size_of, time_at, _, first_later = require('runs')

local function open_piece(text, is_wide, has_unit_runs, offset)
  local base, _, before = unpack('>dI4I4', text)
  return {
    text = text,
    base = base,
    before = before,
    offset = offset,
    is_wide = is_wide,
    has_unit_runs = has_unit_runs,
    run_size = run_size_of(is_wide, has_unit_runs),
  }
end

-- Returns the time of the run at an index.
local function time_in(piece, index)
  return piece.base + time_at(piece.text, 17 + index * piece.run_size, piece.is_wide)
end

-- Returns the position of the run at an index, or the one before the first run at -1.
local function position_in(piece, index)
  local position = piece.before
  if piece.has_unit_runs then
    position = position + index + 1
  elseif index >= 0 then
    position = unpack('>I4', piece.text, 13 + (index + 1) * piece.run_size)
  end
  return (position + piece.offset) % RANGE
end

-- Returns the index of the first run after `limit`, from the run at `low` on, or the number of runs.
local function first_later_in(piece, low, limit)
  local text, size, is_wide, edge = piece.text, piece.run_size, piece.is_wide, limit - piece.base
  local first, last = 17 + low * size, #text - size + 1
  if first > last then
    return low
  end
  local oldest, newest = time_at(text, first, is_wide), time_at(text, last, is_wide)
  if oldest > edge then
    return low
  elseif newest <= edge then
    return (last + size - 17) / size
  end
  return (first_later(text, first, last, edge, size, is_wide, oldest, newest) - 17) / size
end

-- Returns the text with a position for each run: what `change` returns for the stored one.
local function with_positions(piece, change)
  local text, size, position = piece.text, piece.run_size, piece.before
  local time_size = run_size_of(piece.is_wide, true)
  local parts = { sub(text, 1, 16) }
  for at = 17, #text, size do
    position = piece.has_unit_runs and (position + 1) % RANGE or unpack('>I4', text, at + size - 4)
    local changed = change and change((at - 17) / size, position) or position
    parts[#parts + 1] = sub(text, at, at + time_size - 1) .. pack('>I4', changed)
  end
  return table.concat(parts)
end

return open_piece, time_in, position_in, first_later_in, with_positions
