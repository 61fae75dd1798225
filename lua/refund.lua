--[[
refund: gives back units that one check charged, of each count, if they still count. Takes the
place of decide at the end of the script.

KEYS    the value of the subject, if a count is packed; then the extra keys of the counts
ARGV    count: algorithm, buckets, extra, limit, window, ttl, units, time, generation, position, cost,
ARGV    count: refundable
reply   1
calls   those of give_back
server  Redis 6.0

`limit`, `window` and `ttl` are those of the strictest quota of the count; `extra` is which key is its extra key,
from 1, or 0. `units` is how many to give
back of the `cost` that was charged; `refundable` is how many may be given back later. `time`,
`generation` and `position` are what decide replied to the charge.
]]

local make_quota = require('quota')
local add_count, give_back = require('give_back')

local at = 1
while at <= #ARGV do
  local quota = make_quota(ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  local state = add_count(quota, tonumber(ARGV[at + 2]))
  state.units = tonumber(ARGV[at + 6])
  state.charge = {
    time = tonumber(ARGV[at + 7]),
    generation = tonumber(ARGV[at + 8]),
    position = tonumber(ARGV[at + 9]),
    cost = tonumber(ARGV[at + 10]),
    refundable = tonumber(ARGV[at + 11]),
  }
  at = at + 12
end
give_back(function(state)
  return state.ops.refund(state, state.charge, state.units)
end)
return 1
