--[[
failure: makes an error the reply of an entry.

KEYS    none
ARGV    none; the caller passes the reply, the place of the head of the entry, and the error
reply   a function that returns the size of the reply
calls   none
server  any
]]

return function(reply, head, problem)
  -- Removes what was appended before the failure.
  for index = #reply, head + 1, -1 do
    reply[index] = nil
  end
  -- An error is a table since Redis 7.0, a text before.
  reply[head] = type(problem) == 'table' and problem.err or tostring(problem)
  return head
end
