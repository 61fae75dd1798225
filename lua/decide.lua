--[[
decide: decides the entries of one call, one after the other. An entry is one check, or several alike:
each check asks all quotas and charges all of them if all admit it, else none. An entry that fails, for
example on a key of another type, replies with the text of its error; the others are still decided.

KEYS    the keys of each entry, entry by entry, each once within its entry
ARGV    call: quota_lists
ARGV    quota_list: quotas
ARGV    quota: algorithm, buckets, key_index, limit, window, ttl
ARGV    run: entries, quota_list, cost, count
reply   call: time
reply   entry: admitted
reply   admitted: used, reset
reply   refused: used, wait, reset
reply   receipt: generation, position
calls   those of the algorithms
server  Redis 5.0

The arguments are packed into one, as MessagePack, and so is the reply: a number that is an argument of
its own, or that a client parses from text, costs about a hundred instructions more. More than 4 000
values are packed as one array, since a Lua function returns at most 8 000. Fewer are packed one after
the other, which takes half the time to unpack.

`quota_lists` and `quotas` say how many of them follow. `buckets` is the number of buckets of a window;
`key_index` is which key of the entry stores the state of a quota, and `quota_list` which list of quotas
a run uses, both from 1. A run is a number of entries in a row, each of `count` checks of one cost.
`cost`, `limit` and `used` are units. `window`, `wait`, `reset` and `time` are whole microseconds. `ttl`,
the time to live that each write renews, is in milliseconds, as text.

The reply is flat. Each entry has the number of its admitted checks, or the text of an error; then the
reply of each quota to each admitted check; then, unless all were admitted, the reply of each quota to
the first refused one, which holds for all after it. The counters add a receipt to each admitted check:
by `time`, `generation` and `position` of the strictest quota of a key, refund finds the charge again.
A `wait` of 0 admits, -1 never ends. A check of cost 0 only looks; all looks of an entry share one reply.
]]

-- Units that the checks of one entry may ask for together. The client splits larger ones.
local MAX_ENTRY_UNITS = 100000

local packed, quota_lists = { cmsgpack.unpack(ARGV[1]) }, {}
local args = packed[2] and packed or packed[1]
local at = 2
-- Room for the usual reply, so that the table does not grow.
local reply, size = { now, 0, 0, 0 }, 1

-- A list is its first quota, linked to the next. With several quotas it has the number of its keys.
local name, make_ops, fast_path, prepare
for index = 1, args[1] do
  local first_quota, last
  for _ = 1, args[at] do
    if name ~= args[at + 1] then
      name = args[at + 1]
      make_ops, fast_path, prepare = require(name)
    end
    local quota = {
      make_ops = make_ops,
      fast_path = fast_path,
      key_index = args[at + 3],
      limit = args[at + 4],
      window = args[at + 5],
      ttl = args[at + 6],
    }
    if prepare then
      prepare(quota, args[at + 2])
    end
    if last then
      last.next, first_quota.keys = quota, math.max(first_quota.keys or 1, quota.key_index)
    else
      first_quota = quota
    end
    last = quota
    at = at + 6
  end
  quota_lists[index] = first_quota
  at = at + 1
end

local first_key, multi_quota = 1, nil
while args[at] do
  local first_quota, cost, count = quota_lists[args[at + 1]], args[at + 2], args[at + 3]
  -- The usual entry has one quota, which does not have to wait for others.
  local decide = cost > 0 and not first_quota.next and first_quota.fast_path
  if not decide then
    multi_quota = multi_quota or require('multi_quota')
    decide = multi_quota
  end
  if count > 1 and cost * count > MAX_ENTRY_UNITS then
    decide = function()
      error('ERR an entry of more than 100000 units', 0)
    end
  end
  for _ = 1, args[at] do
    local head = size + 1
    -- The reply of an entry goes behind its head.
    reply[head] = 0
    local succeeded, result, new_size = pcall(decide, first_quota, first_key, cost, count, reply, head)
    if succeeded then
      reply[head], size = result, new_size
    else
      -- Removes what was appended before the failure, which may be beyond `size`.
      for index = #reply, head + 1, -1 do
        reply[index] = nil
      end
      -- An error is a table since Redis 7.0, a text before.
      reply[head], size = type(result) == 'table' and result.err or tostring(result), head
    end
    first_key = first_key + (first_quota.keys or 1)
  end
  at = at + 4
end
return cmsgpack.pack(reply)
