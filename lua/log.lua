--[[
log: the operations of an algorithm that stores the time of every unit in a key of its own. A unit charged at
t counts in [t, t + window). Twin of src/algorithm/sliding_log/sliding_log.rs.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the state and its quotas
reply   ops, for a backend
calls   those of the backend; after a refund EXISTS; where a credit or a reset leaves nothing, UNLINK
server  Redis 5.0

A backend is a table of functions:
`bounds` returns the number of units, the time of the oldest, the time of the newest as text, and what
`push` needs to know of the newest. `entry_at` returns the time of the unit at an index. `expired`
returns how many units were charged up to a time, which is more than none and less than all, and, if
known, the time of the next one. `trim` removes up to so many of the oldest and returns how many.
`rewind` moves the units later than now to now. `push` charges units now. `take` gives back up to so
many units charged at a time and returns whether there were any. `drop` removes expired units, at most as
many as `trim` would, and then so many of the oldest. `pop` removes so many of the newest.
]]

return function(backend)
  local call, entry_at = redis.call, backend.entry_at
  local advance, renew = require('advance')(backend)

  local function read(log, cost)
    local used, oldest, skipped, newest = advance(log, cost, backend.bounds(log.extra_key))
    log.used, log.stored, log.oldest, log.skipped, log.newest = used, used, oldest, skipped, newest
  end

  -- Returns the microseconds until the unit at `index` expires. Units that are not written yet are
  -- charged now.
  local function expires_in(log, index)
    local time = now
    if index == 0 and log.oldest then
      time = log.oldest
    elseif index < log.stored then
      time = entry_at(log.extra_key, log.skipped + index)
    end
    return time < now and time + log.window - now or log.window
  end

  local function judge(log, quota, cost)
    local used, limit = log.used, quota.limit
    -- With a limit lowered below what is used, several units expire before one more fits.
    local surplus = used > limit and used - limit or 0
    local reset = used > surplus and expires_in(log, surplus) or 0
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      -- That many units must expire, and they expire in order.
      local last = used + cost - limit - 1
      wait = last == surplus and reset or expires_in(log, last)
    end
    quota.used, quota.wait, quota.reset = used, wait, reset
  end

  local function charge(log, cost)
    log.used = log.used + cost
  end

  local function write(log)
    backend.push(log.extra_key, log.used - log.stored, log.newest)
    if log.stored == 0 then
      require('set_ttl')(log.extra_key, log.ttl)
    end
  end

  -- Removes what `write` charged. A log that was empty before is gone then.
  local function undo(log)
    backend.pop(log.extra_key, log.used - log.stored)
  end

  -- The units of a charge are those of its time: units of one microsecond are interchangeable.
  local function refund(log, charged, units)
    if charged.time + log.window <= now then
      return
    end
    if backend.take(log.extra_key, charged.time, units) and call('EXISTS', log.extra_key) == 1 then
      renew(log)
    end
  end

  -- Removes the oldest units, which would expire first.
  local function credit(log, units)
    if units < log.used then
      backend.drop(log.extra_key, log.skipped, units)
      renew(log)
    elseif log.used > 0 then
      call('UNLINK', log.extra_key)
    end
  end

  local function clear(log)
    call('UNLINK', log.extra_key)
  end

  return {
    read = read,
    judge = judge,
    charge = charge,
    write = write,
    undo = undo,
    refund = refund,
    clear = clear,
    credit = credit,
  }
end
