--[[
log: what the algorithms have in common that remember when each unit was charged. A unit charged at t
counts in [t, t + window). Twin of src/algorithm/sliding_log.rs.

KEYS    none; is given one by decide
ARGV    none; is given a count and its quotas by decide
reply   none; answers decide
calls   those of the kind; when a log begins, or is trimmed, rewound or given units back, PEXPIRE; where
calls   that fails, and when all has expired, UNLINK; after a refund EXISTS
server  Redis 5.0

A kind of log is a table of functions: `survey` tells how many units it holds, when the oldest and, as
text, the newest was charged, and what `push` is to be told of the newest; `entry_at` when the one at
an index was charged; `expired` how many were charged up to a time, which is less than all and more
than none, and where it is known when the next one was; `trim` forgets up to so many of the oldest,
and tells how many; `rewind` has those after now be charged now; `push` charges units now; `take`
takes back up to so many that were charged at a time, and tells whether there were any.
]]

local function log(kind)
  local call = redis.call
  local survey, entry_at = kind.survey, kind.entry_at
  -- Texts of 16 digits, from 2001 to 2286, compare as their numbers do.
  local present = text(now)

  -- Has a log live for as long as it can count.
  local function renew(log)
    log.life = log.life or time_to_live(log.window)
    call('PEXPIRE', log.key, log.life)
  end

  -- Of a log that holds so many units, with such an oldest and newest: how many count, how many expired
  -- ones are still before them, what `push` is to be told, and when the oldest that counts was
  -- charged, where that is known. A cost of 0 only looks.
  local function settle(log, cost, length, oldest, newest, member)
    local key, window = log.key, log.window
    if length == 0 then
      return 0, 0
    end
    if newest > present and cost > 0 then
      -- A clock that stepped back: so none counts for longer than a window. Once for each step.
      kind.rewind(key, length)
      renew(log)
    end
    if oldest + window > now then
      return length, 0, member, oldest
    end
    if newest + window <= now then
      -- All have expired: the log is gone.
      if cost > 0 then
        call('UNLINK', key)
      end
      return 0, 0
    end
    local expired, later = kind.expired(key, length, now - window)
    if cost == 0 then
      return length - expired, expired, member, later
    end
    local trimmed = kind.trim(key, expired)
    renew(log)
    return length - expired, expired - trimmed, member, later
  end

  local function keep(log, used, skipped, newest, oldest)
    log.used, log.held, log.skipped, log.newest, log.oldest = used, used, skipped, newest, oldest
  end

  local function read(log, cost)
    keep(log, settle(log, cost, survey(log.key)))
  end

  -- When the unit at `index` returns, in microseconds from now. Units that are not stored yet are
  -- charged now.
  local function returns_in(log, index)
    local time = now
    if index == 0 and log.oldest then
      time = log.oldest
    elseif index < log.held then
      time = entry_at(log.key, text(log.skipped + index))
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

  local function push(log, units, held, newest)
    kind.push(log.key, units, newest)
    if held == 0 then
      local renewed, problem = pcall(renew, log)
      if not renewed then
        -- A user without the right to PEXPIRE: rather no log than one that stays for ever.
        call('UNLINK', log.key)
        error(problem, 0)
      end
    end
  end

  local function write(log)
    push(log, log.used - log.held, log.held, log.newest)
  end

  -- Where one quota alone decides: the same as judging, charging and writing one check after the
  -- other, in one go. Tells how many are admitted, and appends what the quota says after each.
  local function grant(log, quota, cost, count, reply, size)
    local window = log.window
    local used, oldest, last, member = survey(log.key)
    local skipped = 0
    -- Mostly there is nothing to trim and nothing to rewind.
    if used > 0 and (last > present or oldest + window <= now) then
      used, skipped, member, oldest = settle(log, cost, used, oldest, last, member)
    end
    local room = quota.limit - used
    local granted = cost * count <= room and count or cost <= room and div_down(room, cost) or 0
    if granted < count then
      keep(log, used, skipped, member, oldest)
      log.used = used + granted * cost
    end
    if granted == 0 then
      return 0, size
    end
    local reset = window
    if used > 0 then
      oldest = oldest or entry_at(log.key, text(skipped))
      reset = oldest < now and oldest + window - now or window
    end
    push(log, granted * cost, used, member)
    for after = used + cost, used + granted * cost, cost do
      reply[size + 1], reply[size + 2] = after, reset
      size = size + 2
    end
    return granted, size
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

  return {
    read = read,
    judge = judge,
    charge = charge,
    write = write,
    grant = grant,
    refund = refund,
  }
end
