--[[
credit: lowers the units that count at each key of a subject, whichever check charged them, to 0 at the
least. Takes the place of decide at the end of the script.

KEYS    the keys of the subject, each once
ARGV    call: units
ARGV    key: algorithm, buckets, limit, window, ttl
reply   1
calls   those of the algorithms
server  Redis 5.0

`limit`, `window` and `ttl` are those of the strictest quota of the key. All keys are read before one is
written: if one cannot be read, none is credited.
]]

local units, states, at = tonumber(ARGV[1]), {}, 2
for index, key in ipairs(KEYS) do
  local make_ops, _, prepare = require(ARGV[at])
  local quota = {
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
    ttl = ARGV[at + 4],
  }
  if prepare then
    prepare(quota, tonumber(ARGV[at + 1]))
  end
  local state = { key = key, quota = quota, window = quota.window, ttl = quota.ttl, ops = make_ops() }
  state.ops.read(state, 0)
  states[index] = state
  at = at + 5
end
for _, state in ipairs(states) do
  state.ops.credit(state, units)
end
return 1
