--[[
value: the value of a subject: one string with a section for each count that is packed.

KEYS    none; the caller passes the key
ARGV    none
reply   parse, join, wrong_type
calls   none
server  any

`lua/README.md` describes the bytes. A header is code, window and buckets of a section, nine bytes; the
length of its data follows, and 0 stands for the rest of the value.
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub

-- The first byte of a header: sliding_log, sliding_counter, sliding_buckets, fixed_window, gcra, a journal.
local CODES = 'lcbfgj'

local JOURNAL = 'j' .. string.rep('\0', 8)

local function wrong_type()
  -- Another program has written this text, or a key of another type is in the way.
  error('WRONGTYPE this key holds no count', 0)
end

-- Returns the data of each section by its header, the headers in their order, and the second at which the
-- key expires.
local function parse(stored)
  local sections, order, at, size = {}, {}, 5, #stored
  if size < 16 then
    wrong_type()
  end
  while at <= size do
    local header = sub(stored, at, at + 8)
    if at + 10 >= size or sections[header] or not string.find(CODES, sub(header, 1, 1), 1, true) then
      wrong_type()
    end
    local length = unpack('>I2', stored, at + 9)
    local last = length == 0 and size or at + 10 + length
    if last > size then
      wrong_type()
    end
    sections[header], order[#order + 1] = sub(stored, at + 11, last), header
    at = last + 1
  end
  if sections[JOURNAL] then
    local journal = sections[JOURNAL]
    sections[JOURNAL], order[#order] = nil, nil
    require('journal').fold(sections, order, journal)
  end
  return sections, order, (unpack('>I4', stored))
end

-- Joins sections to a value, or returns nothing if there is none.
local function join(sections, order, expires)
  local parts, last = { pack('>I4', expires) }, nil
  for index = 1, #order do
    local header = order[index]
    local data = sections[header]
    if data then
      parts[#parts + 1], parts[#parts + 2], parts[#parts + 3] = header, pack('>I2', #data), data
      last = #parts - 1
    end
  end
  if last then
    parts[last] = '\0\0'
    return table.concat(parts)
  end
end

return parse, join, wrong_type
