--[[
clock: reads the server's clock. First in every script, so that all checks of a call share one time.

KEYS    none
ARGV    none
reply   none; defines `now`, in whole microseconds since the Unix epoch, and `now_text`, its text
calls   TIME
server  Redis 5.0
]]

local time = redis.call('TIME')
local micros = time[2]
while #micros < 6 do
  micros = '0' .. micros
end
local now_text = time[1] .. micros
local now = now_text + 0
