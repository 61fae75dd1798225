--[[
sliding_log: the exact sliding window, as packed runs. packed_log does the rest.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code
calls   none
server  any
]]

local function make_ops()
  return require('packed_log')
end

return make_ops, nil, nil, string.byte('l')
