--[[
begin: has a log that was empty live for as long as it can count.

KEYS    none; is given one
ARGV    none; is given a count
reply   begin
calls   PEXPIRE; where that fails, UNLINK
server  Redis 5.0
]]

return function(log)
  local call = redis.call
  local renewed, problem = pcall(call, 'PEXPIRE', log.key, log.life)
  if not renewed then
    -- A user without the right to PEXPIRE: rather no log than one that stays for ever.
    call('UNLINK', log.key)
    error(problem, 0)
  end
end
