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
  local sections, order, lengths, at, size, length = {}, {}, {}, 5, #stored, nil
  repeat
    if at + 11 > size then
      wrong_type()
    end
    local header = sub(stored, at, at + 8)
    if sections[header] or not string.find(CODES, sub(header, 1, 1), 1, true) then
      wrong_type()
    end
    length = unpack('>I2', stored, at + 9)
    sections[header], order[#order + 1], lengths[#lengths + 1] = '', header, length
    at = at + 11
  until length == 0
  for index = 1, #order do
    length = lengths[index]
    local last = length == 0 and size or at + length - 1
    if last > size or last < at then
      wrong_type()
    end
    sections[order[index]], at = sub(stored, at, last), last + 1
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
  local headers, data_of_all = { pack('>I4', expires) }, {}
  for index = 1, #order do
    local header = order[index]
    local data = sections[header]
    if data then
      headers[#headers + 1], headers[#headers + 2] = header, pack('>I2', #data)
      data_of_all[#data_of_all + 1] = data
    end
  end
  if #data_of_all > 0 then
    headers[#headers] = '\0\0'
    return table.concat(headers) .. table.concat(data_of_all)
  end
end

return parse, join, wrong_type
