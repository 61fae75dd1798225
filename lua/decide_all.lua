--[[
decide_all: decides several checks together. Each check asks all of its quotas; if all quotas of all checks
admit, all are charged, else none. Takes the place of decide at the end of the script.

KEYS    the values of the checks, each once; then their extra keys
ARGV    check: quotas, cost
ARGV    quota: algorithm, buckets, counter, extra, limit, window, ttl
reply   call: time, admitted
reply   admitted: used, reset
reply   refused: used, wait, reset
reply   receipt: generation, position
calls   those of multi_quota
server  Redis 6.0

The fields are those of decide; `counter` counts the counts of the call, and `extra` the keys, from 1. The
reply is packed and flat: `admitted` is 1 or 0, and the reply of each quota follows, of all checks in order.
A check of cost 0 only looks.
]]

local make_quota = require('quota')
local at, checks, first_quota, last = 1, 0, nil, nil
while ARGV[at] do
  local quotas, cost = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  checks = checks + 1
  at = at + 2
  for _ = 1, quotas do
    local quota = make_quota(ARGV[at], ARGV[at + 1], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6])
    quota.counter, quota.extra = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    quota.cost, quota.subject = cost, checks
    if last then
      last.next = quota
    else
      first_quota = quota
    end
    last = quota
    at = at + 7
  end
end

local reply = { now, 0 }
reply[2] = require('multi_quota')(first_quota, 1, 1, 1, 1, reply, 2, {})
return cmsgpack.pack(reply)
