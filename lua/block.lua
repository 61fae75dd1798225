--[[
block: blocks a key of a limiter for a time, or unblocks it. A script of its own behind the clock and block_list.

KEYS    the block list; the record of the key's refusals
ARGV    member, duration
reply   1, or 0 when the list is full
calls   UNLINK; ZREM to unblock; ZADD up to twice; those of block_list
server  Redis 5.0

`duration` is in whole microseconds from now, at most 2^52; 0 unblocks. An operator has decided about the key, so its
refusals and its automatic blocks are forgotten.
]]

local list, record, ends = KEYS[1], KEYS[2], now + ARGV[2]

-- ZREM comes first: a full server accepts it, and then the rest of the script. It refuses ZADD only as the first write.
if ends == now and call('ZREM', list, ARGV[1]) == 0 then
  call('UNLINK', record)
  return 1
end
local version = begin_change(list)
if ends > now then
  -- Every process reads the whole list when it has changed, so it has an end. A member that is in it already needs no room.
  if is_full(list, 10000) and call('ZADD', list, 'XX', 'CH', ends, ARGV[1]) == 0 then
    return 0
  end
  call('ZADD', list, ends, ARGV[1])
end
end_change(list, version)
call('UNLINK', record)
return 1
