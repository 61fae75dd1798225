--[[
set_ttl: sets the time to live of a key that was empty.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the time to live
reply   set_ttl
calls   PEXPIRE; where that fails, UNLINK
server  Redis 5.0
]]

return function(key, ttl)
  local call = redis.call
  local done, problem = pcall(call, 'PEXPIRE', key, ttl)
  if not done then
    -- The user may not run PEXPIRE: better no units than some that never expire.
    call('UNLINK', key)
    error(problem, 0)
  end
end
