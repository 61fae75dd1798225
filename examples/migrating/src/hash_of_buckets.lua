-- KEYS: the counts of one client by bucket. ARGV: the time, the window and the precision in seconds, the limit.
local bucket = math.floor(ARGV[1] / ARGV[3])
local first, count = bucket - ARGV[2] / ARGV[3] + 1, 0
local buckets = redis.call('HGETALL', KEYS[1])
for at = 1, #buckets, 2 do
  if tonumber(buckets[at]) < first then
    redis.call('HDEL', KEYS[1], buckets[at])
  else
    count = count + buckets[at + 1]
  end
end
if count >= tonumber(ARGV[4]) then
  return 0
end
redis.call('HINCRBY', KEYS[1], bucket, 1)
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
