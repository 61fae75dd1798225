--[[
blocked: tells what is blocked, to who does not know it yet. In place of decide behind the clock.

KEYS    the list of what is blocked: a sorted set of members by when they end
ARGV    version
reply   version, member, left
calls   ZRANGE, ZRANGEBYSCORE
server  Redis 5.0

version is the one that the caller knows, 0 for no list, and empty for none of them; where the list has
no other, it alone is replied. Else member and left follow for each that is blocked; left is whole
microseconds.
]]

local head = redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
local version = head[2] or '0'
local reply = { version }
if version ~= ARGV[1] then
  local blocked = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. present, '+inf', 'WITHSCORES')
  for index = 1, #blocked, 2 do
    reply[index + 1], reply[index + 2] = blocked[index], string.format('%.0f', blocked[index + 1] - now)
  end
end
return reply
