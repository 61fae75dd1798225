--[[
refund: gives back units that one check charged, if they still count; or credits units to counts, whichever check charged
them; or forgets counts. The end of a script behind the kinds of values and their refunds.

KEYS    the value of each list
ARGV    call: values, groups, number; list, quota: as call; then what, units, time, cost, refundable
ARGV    quota: generation, position
reply   number
calls   to change a value PTTL, PEXPIRE, SET; where nothing is left UNLINK; as the kinds of values
server  Redis 6.0

`what` is refund, credit or reset. `units` is how many of the `cost` that was charged are given back, and `refundable` how
many may be later. `time`, `generation` and `position` come from the reply to the charge. `values` is 0. All values are read
before units are taken from one: if one cannot be read, none changes.
]]

local lists, at = read_lists(4, args[2]), args[2]
local places, changes = {}, {}
local charged = { units = args[at + 1], time = args[at + 2], cost = args[at + 3], refundable = args[at + 4] }
for place in pairs(lists) do
  places[#places + 1] = place
end
table.sort(places)
at = at + 5
for number = 1, #places do
  local list, kind, problem = lists[places[number]], args[places[number] + 1], nil
  local quota = list
  repeat
    quota.generation, quota.position, quota, at = args[at], args[at + 1], quota.next, at + 2
  until not quota
  values[number] = true
  -- The new value, '' if nothing is left, a function that changes a sorted set, or false.
  changes[number], problem = changes_of[kind][args[args[2]]](list, number, charged)
  if problem then
    return redis.error_reply(problem)
  end
end
for number = 1, #places do
  local key, change = KEYS[number], changes[number]
  if change == '' then
    call('UNLINK', key)
  elseif type(change) == 'function' then
    change()
  elseif change then
    -- A full server accepts PEXPIRE, and then the rest of the script.
    call('PEXPIRE', key, max(call('PTTL', key), 1))
    call('SET', key, change, 'KEEPTTL')
  end
end
return args[3]
