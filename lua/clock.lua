--[[
clock: what time it is at the server. First of the script, so that all its checks share one time.

KEYS    none
ARGV    none
reply   none; defines `now`, in whole microseconds since the Unix epoch, and `present`, the same as text
calls   TIME
server  Redis 5.0
]]

local time = redis.call('TIME')
local micros = time[2]
while #micros < 6 do
  micros = '0' .. micros
end
local present = time[1] .. micros
local now = present + 0
