--[[
clock: what time it is at the server. First of the script, so that all its checks share one time.

KEYS    none
ARGV    none
reply   none; defines `now`, in whole microseconds since the Unix epoch
calls   TIME
server  Redis 5.0
]]

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
