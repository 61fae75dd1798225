--[[
runs: how the runs of a log are packed, for the files of sliding_log. `lua/README.md` describes the bytes.

KEYS    none
ARGV    none; the caller passes the runs
reply   SEGMENT, MAX_RUNS, MAX_UNIT_RUNS, run_size_of, time_at, encode_time, first_later, is_wide_window
calls   none
server  any
]]

-- The runs of a segment. Less than half of a small log, so that a log with segments is as short.
local SEGMENT = 64

-- Runs of a small log. More become segments.
local MAX_RUNS = 128

-- The same if each run is one unit, of which only the time is stored.
local MAX_UNIT_RUNS = 160

-- The longest window whose times have four bytes: a quarter of their range, so that a log needs a new base at most
-- once in three windows. Longer ones cost less with six bytes.
local MAX_NARROW = 1073741824

local unpack, pack, RANGE = struct.unpack, struct.pack, 4294967296

local function is_wide_window(window)
  return window > MAX_NARROW
end

-- Times of wide windows have six bytes, others four. Positions have four.
local function run_size_of(is_wide, has_unit_runs)
  return (is_wide and 10 or 8) - (has_unit_runs and 4 or 0)
end

-- Returns the time since the base of the run at a byte.
local function time_at(stored, at, is_wide)
  if is_wide then
    local high, low = unpack('>I2I4', stored, at)
    return high * RANGE + low
  end
  return (unpack('>I4', stored, at))
end

local function encode_time(time, is_wide)
  if is_wide then
    local low = time % RANGE
    return pack('>I2I4', (time - low) / RANGE, low)
  end
  return pack('>I4', time)
end

-- Returns the byte and the time of the first run after `edge`. The run at byte `low` is not later, the one at
-- byte `high` is. Runs are often spaced evenly, so the first two of the probes are guesses.
local function first_later(stored, low, high, edge, size, is_wide, oldest, newest)
  local runs = (high - low) / size
  local guess = (edge - oldest) / (newest - oldest) * runs
  local middle, probes = low + (guess - guess % 1) * size, 1
  while high - low > size do
    if middle <= low or middle >= high then
      runs = (high - low) / size
      middle = low + (runs - runs % 2) / 2 * size
    end
    local time = is_wide and time_at(stored, middle, true) or unpack('>I4', stored, middle)
    if time > edge then
      high, newest = middle, time
      middle = probes == 1 and high - 4 * size or 0
    else
      low = middle
      middle = probes == 1 and low + 4 * size or 0
    end
    probes = 2
  end
  return high, newest
end

return SEGMENT, MAX_RUNS, MAX_UNIT_RUNS, run_size_of, time_at, encode_time, first_later, is_wide_window
