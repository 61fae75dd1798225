--[[
blocked: tells what is blocked, to who does not know it yet. In place of decide behind the clock.

KEYS    the list of what is blocked: a sorted set of members by when they end
ARGV    version
reply   member, ends, present, version
calls   ZRANGE, ZRANGEBYSCORE
server  Redis 5.0

version is the one that the caller knows, 0 for no list, and empty for none of them; where the list has
no other, it alone is replied. Else member and ends come before for each that is blocked: as Redis has
them, since to make others of ten thousand takes Lua longer than all the rest.
]]

local head = redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
local version = head[2] or '0'
if version == ARGV[1] then
  return { version }
end
local reply = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. present, '+inf', 'WITHSCORES')
local count = #reply
reply[count + 1], reply[count + 2] = present, version
return reply
