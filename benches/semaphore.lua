-- The semaphore as it is found in tutorials: one member a permit, scored by the end of its lease. ZREM releases it.
-- KEYS: the permits of one client. ARGV: the limit, the lease in milliseconds, a new member. Replies 1 or 0.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now)
if redis.call('ZCARD', KEYS[1]) >= limit then
  return 0
end
redis.call('ZADD', KEYS[1], now + lease, ARGV[3])
redis.call('PEXPIRE', KEYS[1], lease)
return 1
