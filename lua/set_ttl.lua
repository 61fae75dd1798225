--[[
set_ttl: sets the time to live of a log that was empty.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the state
reply   set_ttl
calls   PEXPIRE; where that fails, UNLINK
server  Redis 5.0
]]

return function(log)
  local call = redis.call
  local done, problem = pcall(call, 'PEXPIRE', log.key, log.ttl)
  if not done then
    -- The user may not run PEXPIRE: better no log than one that never expires.
    call('UNLINK', log.key)
    error(problem, 0)
  end
end
