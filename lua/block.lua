--[[
block: blocks a key of a limiter for a time, or unblocks it. A script of its own behind the clock.

KEYS    the block list: a sorted set of members, scored by the end of their block
ARGV    member, duration
reply   1, or 0 when the list is full
calls   ZREM to unblock; ZRANGE three times, ZCOUNT, ZREMRANGEBYRANK, ZADD up to three times, PEXPIRE
server  Redis 5.0

`duration` is in whole microseconds from now, at most 2^52; 0 unblocks. The member `#` holds the
version of the list, which grows with each change. Its score is in milliseconds, so that it sorts
before all members, whose scores are in microseconds.
]]

local call, list, ends = redis.call, KEYS[1], now + ARGV[2]
local score = string.format('%.0f', ends)
-- Every process reads the whole list when it has changed, at most once a second.
local MAX_BLOCKED = 10000

-- ZREM comes first: a full server accepts it, and then the rest of the script. It refuses ZADD only as
-- the first write.
if ends == now and call('ZREM', list, ARGV[1]) == 0 then
  return 1
end
local head = call('ZRANGE', list, '0', '0', 'WITHSCORES')
local version = math.max(math.floor(now / 1000), (head[2] or 0) + 1)
local ended = call('ZCOUNT', list, '-inf', now_text)
if ended > 1 then
  call('ZREMRANGEBYRANK', list, '1', ended - 1)
end
local is_full = ends > now and #call('ZRANGE', list, MAX_BLOCKED, MAX_BLOCKED) > 0
-- A member that is in the list already needs no room.
if is_full and call('ZADD', list, 'XX', 'CH', score, ARGV[1]) == 0 then
  return 0
end
call('ZADD', list, string.format('%.0f', version), '#')
if ends > now then
  call('ZADD', list, score, ARGV[1])
end
local last = call('ZRANGE', list, '-1', '-1', 'WITHSCORES')[2] + 0
-- Five seconds longer than the last block: other processes look for a new version each second.
call('PEXPIRE', list, string.format('%.0f', math.ceil(math.max(last - now, 0) / 1000) + 5000))
return 1
