--[[
push: appends units to the list of a sliding_log, charged now.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the number of units
reply   push
calls   RPUSH
server  Redis 5.0
]]

-- Arguments of one command: unpack fails at 8 000.
local CHUNK = 4000

return function(key, count)
  local entries, unpack = {}, table.unpack or unpack
  for index = 1, math.min(count, CHUNK) do
    entries[index] = now_text
  end
  while count > 0 do
    local pushed = math.min(count, CHUNK)
    redis.call('RPUSH', key, unpack(entries, 1, pushed))
    count = count - pushed
  end
end
