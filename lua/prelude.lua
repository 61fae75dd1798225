--[[
prelude: what the files of the general path share. Behind the loop, if there is one.

KEYS    none
ARGV    none
reply   none; defines short names, `size`, `kinds`, `WRONG_TYPE`, `expiry` and `read_lists`
calls   none
server  Redis 6.0

`kinds` has a function by kind of value. It prepares a list of quotas, and gives it three functions: `room(list, number)`
opens the value of a key and returns the units that all quotas have left, -1 if they refuse a cost of 0 too, or nothing and why
the value cannot be decided;
`charge(list, number, units)` charges what `room` has opened, and appends the reply; `refuse(list, number, cost)` appends the
reply to a cost that is refused or 0.
]]

local call, unpack, pack, sub, spread = redis.call, struct.unpack, struct.pack, string.sub, table.unpack or unpack
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local size, kinds = #reply, {}

local WRONG_TYPE = 'WRONGTYPE this key holds no count'

-- Returns the second at which a key expires that is given a time to live in milliseconds: twice as long as units count, and a
-- second for what is rounded. Four bytes end in 2106.
local function expiry(ttl)
  return min(floor((floor(now / 1000) + ttl) / 1000), 4294967295)
end

-- Reads the lists of quotas up to a place, by their places. A list is its first quota, linked to the next. It `is_closed` if a
-- quota never admits a unit.
local function read_lists(at, stop)
  local lists = {}
  while at < stop do
    local place, first, last = at, nil, nil
    for index = 1, args[place] do
      local from = place + 2 + 4 * index
      local quota = {
        algorithm = args[from], limit = args[from + 1], window = args[from + 2], header = args[from + 3], next = false,
        is_long = args[place + 2] > 0, bucket = args[place + 3], ttl = args[place + 4], is_soft = args[place + 5] > 0, room = false, charge = false, refuse = false,
        needs = 0, used = 0, time = 0, clock = now, first = 0, before = 0, is_closed = false,
      }
      if last then
        last.next = quota
      end
      first, last, at = first or quota, quota, from + 4
      first.is_closed = first.is_closed or quota.limit == 0
    end
    kinds[args[place + 1]](first)
    lists[place] = first
  end
  return lists
end
