--[[
call: reads the arguments of a call, and all values that are read whole. Behind the clock, before everything else.

KEYS    the values that are read whole, each once; then long logs and sorted sets
ARGV    call: values, groups, number
ARGV    list: quotas, kind, is_long, bucket, ttl, is_soft
ARGV    quota: algorithm, limit, window, header
ARGV    group: is_usual, length, entries, count, more, eighths, levels, is_shared
ARGV    level: list, cost
ARGV    key: value
reply   none; defines `args`, `values`, `reply` and `leftover`
calls   MGET; if a value is missing EXISTS
server  Redis 6.0

The arguments are one MessagePack array, or its values one after the other. `values` is how many keys are read whole. From
the fourth argument on come the lists, each with its quotas; at the place `groups` begin the groups, each with its levels and
then the keys of its entries. Times are in microseconds, `ttl` in milliseconds; logs know their own. The reply begins with
`number`, by which the caller knows it from the reply to another call.

- `kind` is log, counters, sorted_set or in_flight. `bucket` is the length of a bucket, or 0. A log of a high limit `is_long`: it is read
  in pages. Quotas of counters are sorted by header, then by limit; quotas of logs by window, then by limit, highest first.
  A list that `is_soft` has one quota and a value of its own. It refuses no check, and is charged for those that it has room for.
- `algorithm` is the file of the rule, or sliding_buckets, or calendar_window: a fixed_window whose `window` is a text, see there.
  `header` is what a row has in front of its numbers; of a log, 'l' and the window as a double; of slots, the message of
  their holder.
- `entries` is how many entries of the same levels follow each other, each of `count` identical checks. If `count` is 0, it is
  a charge of what was used: also beyond the limits. `length` is how many
  arguments the group has. `list` is the place of a list, `value` the number of a key. In a group of one level, the keys
  of the other entries follow the one that is given.
- `more` is how many units beyond its cost a check wants, for a lease. If it is not 0, `count` is 1 and every cost is above 0.
  They are at most so many `eighths` of what is left after the cost.
- A group that `is_usual` is for a loop: one check of one level and one quota, a cost, and values that no earlier group has; a
  log that is not long; a sliding_counter or gcra whose limit times window is below 2^53; no calendar. A group `is_shared` if
  entries of several levels may have values in common.
]]

local args = { cmsgpack.unpack(ARGV[1]) }
args = args[2] and args or args[1]

-- By the number of a key: the text; false if it is missing; '' if it is of another type; true once this call has written it;
-- nothing if it was not read.
local values = {}
if args[1] > 0 then
  values = redis.call('MGET', (table.unpack or unpack)(KEYS, 1, args[1]))
  local missing = nil
  for number = 1, args[1] do
    if not values[number] then
      missing = missing or {}
      missing[#missing + 1] = KEYS[number]
    end
  end
  -- MGET does not tell a key of another type from one that is missing.
  if missing and redis.call('EXISTS', (table.unpack or unpack)(missing)) > 0 then
    for number = 1, args[1] do
      values[number] = values[number] or redis.call('EXISTS', KEYS[number]) == 1 and ''
    end
  end
end

-- First the number of the call, and the time; then the replies to the entries of all usual groups, or false if one follows
-- behind; then all others.
local reply = { args[3], now }

-- The entries that a loop leaves to `decide`: the place of a group, and the number of one of its keys, or 0 for all; and so on.
local leftover = nil
