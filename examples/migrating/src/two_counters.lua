-- KEYS: the counts of this window and of the one before. ARGV: the seconds into this window, the window, the limit.
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
local before = tonumber(redis.call('GET', KEYS[2]) or 0)
if before * (1 - ARGV[1] / ARGV[2]) + count >= tonumber(ARGV[3]) then
  return 0
end
redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], 2 * ARGV[2])
return 1
