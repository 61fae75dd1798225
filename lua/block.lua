--[[
block: notes until when a key of a limiter is blocked. In place of decide behind the clock.

KEYS    the list of what is blocked: a sorted set of members by when they end
ARGV    member, duration
reply   1, or 0 when the list is full
calls   ZREM to end one; ZRANGE three times, ZCOUNT, ZREMRANGEBYRANK, ZADD up to three times, PEXPIRE
server  Redis 5.0

duration is whole microseconds from now on, of no more than 2^52; 0 ends what is blocked. The member `#`
is the version of the list: its score is in milliseconds, so that it stands before all that ends in
microseconds, and grows with each change.
]]

local call, list, ends = redis.call, KEYS[1], now + ARGV[2]
local score = string.format('%.0f', ends)
-- As many as every process can be told each second.
local MOST = 10000

-- First of all: a server that is full refuses ZADD only as the first write of a script. So what is blocked
-- can be ended there, and others be told.
if ends == now and call('ZREM', list, ARGV[1]) == 0 then
  return 1
end
local head = call('ZRANGE', list, '0', '0', 'WITHSCORES')
local version = math.max(math.floor(now / 1000), (head[2] or 0) + 1)
local over = call('ZCOUNT', list, '-inf', present)
if over > 1 then
  call('ZREMRANGEBYRANK', list, '1', over - 1)
end
local is_full = ends > now and #call('ZRANGE', list, MOST, MOST) > 0
-- Who is in it already takes no more room.
if is_full and call('ZADD', list, 'XX', 'CH', score, ARGV[1]) == 0 then
  return 0
end
call('ZADD', list, string.format('%.0f', version), '#')
if ends > now then
  call('ZADD', list, score, ARGV[1])
end
local last = call('ZRANGE', list, '-1', '-1', 'WITHSCORES')[2] + 0
-- Some seconds more: others look each second whether there is another version.
call('PEXPIRE', list, string.format('%.0f', math.ceil(math.max(last - now, 0) / 1000) + 5000))
return 1
