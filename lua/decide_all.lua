--[[
decide_all: decides several checks together. Each check asks all of its quotas; if all quotas of all checks
admit, all are charged, else none. Takes the place of decide at the end of the script.

KEYS    the keys of each check, check by check, each once
ARGV    check: quotas, cost
ARGV    quota: algorithm, buckets, key_index, limit, window, ttl
reply   call: time, admitted
reply   admitted: used, reset
reply   refused: used, wait, reset
reply   receipt: generation, position
calls   those of the algorithms
server  Redis 5.0

The fields are those of decide; `key_index` counts the keys of the call, from 1. The reply is packed and
flat: `admitted` is 1 or 0, and the reply of each quota follows, of all checks in order. A check of cost 0
only looks.
]]

local at, first_quota, last = 1, nil, nil
while ARGV[at] do
  local quotas, cost = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, quotas do
    local make_ops, _, prepare = require(ARGV[at])
    local quota = {
      make_ops = make_ops,
      key_index = tonumber(ARGV[at + 2]),
      limit = tonumber(ARGV[at + 3]),
      window = tonumber(ARGV[at + 4]),
      ttl = ARGV[at + 5],
      cost = cost,
    }
    if prepare then
      prepare(quota, tonumber(ARGV[at + 1]))
    end
    if last then
      last.next = quota
    else
      first_quota = quota
    end
    last = quota
    at = at + 6
  end
end

local reply = { now, 0 }
reply[2] = require('multi_quota')(first_quota, 1, 1, 1, reply, 2)
return cmsgpack.pack(reply)
