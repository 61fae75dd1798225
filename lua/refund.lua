--[[
refund: gives back units that one check charged, at each of its keys, if they still count. Takes the
place of decide at the end of the script.

KEYS    the keys that the check charged, each once
ARGV    key: algorithm, buckets, limit, window, ttl, units, time, generation, position, cost, refundable
reply   1
calls   those of the algorithms
server  Redis 5.0

`limit`, `window` and `ttl` are those of the strictest quota of the key. `units` is how many to give
back of the `cost` that was charged; `refundable` is how many may be given back later. `time`,
`generation` and `position` are what decide replied to the charge.
]]

local at = 1
for _, key in ipairs(KEYS) do
  local make_ops, _, prepare = require(ARGV[at])
  local quota = {
    key = key,
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
    ttl = ARGV[at + 4],
  }
  if prepare then
    prepare(quota, tonumber(ARGV[at + 1]))
  end
  local units = tonumber(ARGV[at + 5])
  local charge = {
    time = tonumber(ARGV[at + 6]),
    generation = ARGV[at + 7],
    position = tonumber(ARGV[at + 8]),
    cost = tonumber(ARGV[at + 9]),
    refundable = tonumber(ARGV[at + 10]),
  }
  make_ops().refund(quota, charge, units)
  at = at + 11
end
return 1
