--[[
holders: lists the processes that hold slots of a key. A script of its own behind the clock.

KEYS    the slots of a key: see holds.lua
ARGV    number
reply   of each holder: holder, slots, left; then number
calls   GET
server  Redis 5.0

`left` is the time until its lease ends, in microseconds. Holders without slots are left out.
]]

local value, reply = redis.call('GET', KEYS[1]) or '', {}
for at = 2, #value - 47, 48 do
  local holder, _, slots, lease, _, ends = struct.unpack('>c16dI4I4dd', value, at)
  local left = math.min(ends - now, 1000 * lease)
  if slots > 0 and left > 0 then
    reply[#reply + 1] = { holder, slots, left }
  end
end
reply[#reply + 1] = ARGV[1]
return reply
