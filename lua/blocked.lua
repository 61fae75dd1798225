--[[
blocked: lists the blocked keys, if the list has changed. A script of its own behind the clock.

KEYS    the block list: a sorted set of members, scored by the end of their block
ARGV    version, number
reply   member, ends, now, version, number
calls   ZRANGE, ZRANGEBYSCORE
server  Redis 5.0

`version` is the one that the caller knows: 0 for no list, empty if it knows none. A list of the same
version replies with the version and `number` alone. Otherwise `member` and `ends` come first, for each blocked
key, as Redis returns them: copying ten thousand in Lua takes longer than the rest of the script.
]]

local head = redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
local version = head[2] or '0'
if version == ARGV[1] then
  return { version, ARGV[2] }
end
local reply = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now_text, '+inf', 'WITHSCORES')
local count = #reply
reply[count + 1], reply[count + 2], reply[count + 3] = now_text, version, ARGV[2]
return reply
