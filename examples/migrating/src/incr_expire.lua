-- KEYS: the count of one client. ARGV: the window in seconds, the limit.
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return count <= tonumber(ARGV[2]) and 1 or 0
