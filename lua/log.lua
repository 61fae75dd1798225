--[[
log: the steps of the algorithms that remember when each unit was charged. A unit charged at t counts
in [t, t + window). Twin of src/algorithm/sliding_log.rs.

KEYS    none; is given one
ARGV    none; is given a count and its quotas
reply   steps of a kind of log
calls   those of the kind; after a refund EXISTS; where a gift leaves nothing, UNLINK
server  Redis 5.0

A kind of log is a table of functions: `survey` tells how many units it holds, when the oldest and, as
text, the newest was charged, and what `push` is to be told of the newest; `entry_at` when the one at
an index was charged; `expired` how many were charged up to a time, which is less than all and more
than none, and where it is known when the next one was; `trim` forgets up to so many of the oldest,
and tells how many; `rewind` has those after now be charged now; `push` charges units now; `take`
takes back up to so many that were charged at a time, and tells whether there were any; `drop` forgets
so many expired ones, as far as `trim` would, and so many of those behind them; `pop` forgets so many of
the newest.
]]

return function(kind)
  local call, entry_at = redis.call, kind.entry_at
  local settle, renew = need('settle')(kind)

  local function read(log, cost)
    local used, oldest, skipped, newest = settle(log, cost, kind.survey(log.key))
    log.used, log.held, log.oldest, log.skipped, log.newest = used, used, oldest, skipped, newest
  end

  -- When the unit at `index` returns, in microseconds from now. Units that are not stored yet are
  -- charged now.
  local function returns_in(log, index)
    local time = now
    if index == 0 and log.oldest then
      time = log.oldest
    elseif index < log.held then
      time = entry_at(log.key, log.skipped + index)
    end
    return time < now and time + log.window - now or log.window
  end

  local function judge(log, quota, cost)
    local used, limit = log.used, quota.limit
    -- Where the limit was lowered below what is used, some leave before one more fits.
    local surplus = used > limit and used - limit or 0
    local reset = used > surplus and returns_in(log, surplus) or 0
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      -- That many units must leave, and they leave in order.
      local last = used + cost - limit - 1
      wait = last == surplus and reset or returns_in(log, last)
    end
    quota.used, quota.wait, quota.reset = used, wait, reset
  end

  local function charge(log, cost)
    log.used = log.used + cost
  end

  local function write(log)
    kind.push(log.key, log.used - log.held, log.newest)
    if log.held == 0 then
      need('begin')(log)
    end
  end

  -- Takes back what a write charged. A log that was empty before is gone then.
  local function undo(log)
    kind.pop(log.key, log.used - log.held)
  end

  -- The units of a charge are those of its time: units of one microsecond are all alike.
  local function refund(log, made, units)
    if made.time + log.window <= now then
      return
    end
    if kind.take(log.key, made.time, units) and call('EXISTS', log.key) == 1 then
      renew(log)
    end
  end

  -- The oldest go: they would be back soon.
  local function give(log, units)
    if units < log.used then
      kind.drop(log.key, log.skipped, units)
      renew(log)
    elseif log.used > 0 then
      call('UNLINK', log.key)
    end
  end

  return {
    read = read,
    judge = judge,
    charge = charge,
    write = write,
    undo = undo,
    refund = refund,
    give = give,
  }
end
