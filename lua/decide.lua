--[[
decide: reads the entries of one call and decides them one after the other. An entry is one check, or
several that are alike: each asks all quotas, and charges all of them if all admit it, else none. An
entry that fails, for example on a key of another type, is answered by the text of the error and
leaves its neighbours alone.

KEYS    the stored counts, entry by entry: of each those of its quotas, each once
ARGV    call: plans
ARGV    plan: quotas
ARGV    quota: algorithm, parts, counter, limit, window, life
ARGV    run: entries, plan, cost, count
reply   call: time
reply   entry: admitted
reply   admitted: used, reset
reply   refused: used, wait, reset
reply   receipt: stamp, mark
calls   those of the algorithms
server  Redis 5.0

All arguments are packed into one, as MessagePack, and so is the reply: each number that is an argument,
or that a client reads as text, costs some hundred instructions more. Of more than 4 000 they are one
array, since Lua takes at most 8 000 values from a function; else they are not, since that takes
twice as long to read. `plans` and `quotas` say how many follow. `parts` is
into how many buckets a window is divided; `counter` which of the entry's stored counts a quota judges,
and `plan` which list of quotas the entries of a run have, both from 1. A run stands for so many entries
in a row, each of so many checks (`count`) of one cost. cost, limit and used are units; window, wait,
reset and time whole microseconds; `life`, for how long a count is kept after it was renewed, is in
milliseconds, as text.

The reply is flat. Of an entry it holds how many of its checks were admitted, or the text of an error;
then what each quota says after each of those, and if not all were, what each says of the first that
was refused, which is what it says of all behind it. A tally adds a receipt for each admitted check: by
time, stamp and mark of the strictest quota of a count, refund finds again what was charged. A
wait of 0 admits, one of -1 never ends. A cost of 0 only looks, which is told once.
]]

-- As many units as one entry may ask for in several checks: the caller sees to it.
local UNITS_OF_ENTRY = 100000

local packed, plans = { cmsgpack.unpack(ARGV[1]) }, {}
local args = packed[2] and packed or packed[1]
local at = 2
-- With room for the usual answer, so that the table need not grow.
local reply, size = { now, 0, 0, 0 }, 1

-- A plan is its first quota, which knows the next, and where there are several how many counts they
-- have.
local name, steps, grant, prepare
for index = 1, args[1] do
  local plan, last
  for _ = 1, args[at] do
    if name ~= args[at + 1] then
      name = args[at + 1]
      steps, grant, prepare = need(name)
    end
    local quota = {
      steps = steps,
      grant = grant,
      counter = args[at + 3],
      limit = args[at + 4],
      window = args[at + 5],
      life = args[at + 6],
    }
    if prepare then
      prepare(quota, args[at + 2])
    end
    if last then
      last.next, plan.counts = quota, math.max(plan.counts or 1, quota.counter)
    else
      plan = quota
    end
    last = quota
    at = at + 6
  end
  plans[index] = plan
  at = at + 1
end

local first, several = 1, nil
while args[at] do
  local plan, cost, count = plans[args[at + 1]], args[at + 2], args[at + 3]
  -- The usual entry has one quota, which need not wait for what others say.
  local decide = cost > 0 and not plan.next and plan.grant
  if not decide then
    several = several or need('several')
    decide = several
  end
  if count > 1 and cost * count > UNITS_OF_ENTRY then
    decide = function()
      error('ERR an entry of more than 100000 units', 0)
    end
  end
  for _ = 1, args[at] do
    local head = size + 1
    -- What an entry says goes behind its head.
    reply[head] = 0
    local decided, said, grown = pcall(decide, plan, first, cost, count, reply, head)
    if decided then
      reply[head], size = said, grown
    else
      -- Not only up to `size`: what was appended before it failed goes.
      for index = #reply, head + 1, -1 do
        reply[index] = nil
      end
      -- Since Redis 7.0 an error is a table, before that a text.
      reply[head], size = type(said) == 'table' and said.err or tostring(said), head
    end
    first = first + (plan.counts or 1)
  end
  at = at + 4
end
return cmsgpack.pack(reply)
