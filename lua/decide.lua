--[[
decide: decides the entries of one call, one after the other. An entry is one check, or several alike. A
check has one level or several, each with its own key, quotas and cost. It asks all quotas of all levels and
charges all of them if all admit it, else none. An entry that fails, for example on a key of another type,
replies with the text of its error; the others are still decided.

KEYS    the values of the subjects, each once; then their extra keys
ARGV    call: quota_lists, values
ARGV    quota_list: quotas
ARGV    quota: algorithm, buckets, counter, extra, limit, window, ttl
ARGV    run: entries, count, more, levels
ARGV    level: quota_list, cost
ARGV    place: value, extra
reply   call: time
reply   entry: admitted
reply   admitted: used, reset
reply   refused: used, wait, reset
reply   receipt: generation, position
calls   MGET; those of fast_path, fast_path_counters, grant, levels and multi_quota
server  Redis 6.0

The arguments are packed into one, as MessagePack, and so is the reply: a number that is an argument of
its own, or that a client parses from text, costs about a hundred instructions more. More than 4 000
values are packed as one array, since a Lua function returns at most 8 000. Fewer are packed one after
the other, which takes half the time to unpack.

`quota_lists` and `quotas` say how many of them follow, and `values` how many of the keys are values. `buckets`
is the number of buckets of a window. Quotas of one `counter` share a count; counters are numbered from 1. `extra`
of a quota is which extra key of its level the count may need, from 1, or 0: a sorted set, or the list of a large
log. A run is a number of entries in a row, each of `count` checks of the same levels but for their keys. A
level asks the list of quotas of a number, from 1. Its place is the number of the key that is its value, or 0 if
no count is packed, and of its first extra key, or 0. The places of all levels of all entries follow the levels; if
there is one level, only that of the first entry, since the keys of the others follow each other. `cost`, `more`,
`limit` and `used` are units. If `more` is not 0, an entry is one check of one level, which is charged up to `more`
units beyond its cost; the reply has the number of charged units in place of `admitted`. `window`, `wait`, `reset`
and `time` are whole microseconds. `ttl`, the time to live that a count is given, is in milliseconds, as text.

The reply is flat. Each entry has the number of its admitted checks, or the text of an error; then the
reply of each quota, level by level, to each admitted check; then, unless all were admitted, the reply of each
quota to the first refused one, which holds for all after it. The counters add a receipt to each admitted
check: by `time`, `generation` and `position` of the strictest quota of a count, refund finds the charge again.
In place of the numbers of counters stands a text of their new data, which lua/README.md describes. If it comes
first, it is the reply to all admitted checks.
A `wait` of 0 admits, -1 never ends. A check whose levels all cost 0 only looks; all looks of an entry share
one reply. A run of several levels replies in another order, which lua/README.md describes.
]]

-- Units that the checks of one entry may ask a level for together. The client splits larger ones.
local MAX_ENTRY_UNITS = 100000

local packed, quota_lists = { cmsgpack.unpack(ARGV[1]) }, {}
local args = packed[2] and packed or packed[1]
local at = 3
-- Room for the usual reply, so that the table does not grow.
local reply, size = { now, 0, 0, 0 }, 1

-- A list is its first quota, linked to the next. It has the number of its extra keys.
local make_quota = require('quota')
for index = 1, args[1] do
  local first_quota, last, is_usual, has_counters = nil, nil, true, true
  for _ = 1, args[at] do
    local quota = make_quota(args[at + 1], args[at + 2], args[at + 5], args[at + 6], args[at + 7])
    quota.counter, quota.extra = args[at + 3], args[at + 4]
    if last then
      last.next, first_quota.extras = quota, math.max(first_quota.extras, quota.extra)
    else
      first_quota, quota.extras = quota, quota.extra
    end
    -- Unusual are a sorted set, and two quotas of one count.
    is_usual = is_usual and (quota.step or quota.attempt) and not (last and last.counter >= quota.counter)
    has_counters = has_counters and quota.step
    last = quota
    at = at + 7
  end
  if is_usual and has_counters then
    first_quota.path = first_quota == last and 'fast_path_counter' or 'fast_path_counters'
  elseif is_usual then
    first_quota.path = first_quota == last and 'fast_path' or 'fast_path_several'
  end
  quota_lists[index] = first_quota
  at = at + 1
end

-- The stored values, as changed by the entries so far.
local values, count_of_values = {}, args[2]
if count_of_values > 0 then
  values = redis.call('MGET', (table.unpack or unpack)(KEYS, 1, count_of_values))
end

local decide_one_level, decide_run
while args[at] do
  local entries, count, more, levels = args[at], args[at + 1], args[at + 2], args[at + 3]
  at = at + 4
  if levels > 1 then
    if not decide_run then
      decide_run = require('levels')(args, quota_lists, values, reply)
    end
    size, at = decide_run(entries, count, levels, at, size)
  else
    local first_quota, cost = quota_lists[args[at]], args[at + 1]
    local value, extra = args[at + 2], args[at + 3]
    local path, decide = cost > 0 and first_quota.path, nil
    if path then
      decide = first_quota.decide or require(path)
      first_quota.decide = decide
    else
      decide_one_level = decide_one_level or select(2, require('multi_quota'))
      decide = decide_one_level
    end
    if more > 0 then
      decide = require('grant')(decide, more)
    elseif count > 1 and cost * count > MAX_ENTRY_UNITS then
      decide = function()
        error('ERR an entry of more than 100000 units', 0)
      end
    end
    for _ = 1, entries do
      local head = size + 1
      -- The reply of an entry goes behind its head.
      reply[head] = 0
      local succeeded, result, new_size =
        pcall(decide, first_quota, value, extra, cost, count, reply, head, values)
      if succeeded then
        reply[head], size = result, new_size
      else
        size = require('failure')(reply, head, result)
      end
      value, extra = value + 1, extra + first_quota.extras
    end
    at = at + 4
  end
end
if size == 3 then
  -- A single counter replies with less than the room for it.
  reply[4] = nil
end
return cmsgpack.pack(reply)
