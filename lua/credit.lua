--[[
credit: lowers the units of each count of a subject, whichever check charged them, to 0 at the least; or
forgets the counts. Takes the place of decide at the end of the script.

KEYS    the value of the subject, if a count is packed; then the extra keys of the counts
ARGV    call: units
ARGV    count: algorithm, buckets, extra, limit, window, ttl
reply   1
calls   those of give_back
server  Redis 6.0

`units` is -1 to forget the counts. `limit`, `window` and `ttl` are those of the strictest quota of the count;
`extra` is which key is its extra key, from 1, or 0. If a count cannot be read, none is credited.
]]

local make_quota = require('quota')
local add_count, give_back = require('give_back')

local units, at = tonumber(ARGV[1]), 2
while at <= #ARGV do
  local quota = make_quota(ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  add_count(quota, tonumber(ARGV[at + 2]))
  at = at + 6
end
give_back(function(state)
  if units < 0 then
    return state.ops.clear(state)
  end
  return state.ops.credit(state, units)
end, units > 0)
return 1
