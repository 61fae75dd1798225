--[[
call: reads the arguments of a call, and all values that are read whole. Behind the clock, before everything else.

KEYS    the values that are read whole, each once; then long logs and sorted sets
ARGV    call: values, runs
ARGV    list: quotas, kind, is_long, bucket, ttl
ARGV    quota: algorithm, limit, window, header
ARGV    run: is_usual, length, entries, count, more, levels, is_shared
ARGV    level: list, cost
ARGV    key: value
reply   none; defines `args`, `values`, `reply` and `left`
calls   MGET; if a value is missing EXISTS
server  Redis 6.0

The arguments are one MessagePack array, or its values one after the other. `values` is how many keys are read whole. From
the third argument on come lists of quotas, each with its quotas; at the place `runs` begin the runs, each with its levels
and then the keys of its entries. A level names the place of its `list`. Times are in microseconds, `ttl` in milliseconds.

A list has one kind of value: log, counters or sorted_set; `bucket` is the length of a bucket, or 0. A run is `entries` of
the same levels in a row, each of `count` identical checks, which want up to `more` units beyond their cost. `length` is how
many arguments it has. `value` is the number of a key. In a run of one level, the keys of the other entries follow the one
that is given. A run that `is_usual` is for the loop of an algorithm: one check of one level, one quota, and a cost, of
values that no earlier run has. A run `is_shared` if entries have values in common.
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

-- First the time; then the replies to the entries of all usual runs, or false if one follows behind; then all others.
local reply = { now }

-- What a loop leaves to `decide`: the place of a run, and the number of one of its keys, or 0 for all; and so on.
local left = nil
