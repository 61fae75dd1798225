--[[
advance: brings a log up to now: trims what has expired, and rewinds what is later than now.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the state
reply   advance, renew; for a backend
calls   those of the backend; after a trim or rewind PEXPIRE; when all has expired, UNLINK
server  Redis 5.0
]]

return function(backend)
  local call = redis.call

  -- Renews the time to live.
  local function renew(log)
    call('PEXPIRE', log.extra_key, log.ttl)
  end

  -- Takes the bounds of a log. Returns the units that count, the time of the oldest of them, if known,
  -- the expired units that are still before it, and what `push` needs to know of the newest. A cost of 0
  -- writes nothing.
  local function advance(log, cost, length, oldest, newest, member)
    local key, window = log.extra_key, log.window
    if length == 0 then
      return 0, nil, 0
    end
    if newest > now_text and cost > 0 then
      -- The clock stepped back. Rewound units count for one window at most; it happens once per step.
      -- PEXPIRE comes first: a full server accepts it, and then the rest of the script.
      renew(log)
      backend.rewind(key, length)
    end
    if oldest + window > now then
      return length, oldest, 0, member
    end
    if newest + window <= now then
      -- All units have expired.
      if cost > 0 then
        call('UNLINK', key)
      end
      return 0, nil, 0
    end
    local expired, later = backend.expired(key, length, now - window)
    if length - expired == 1 then
      later = newest + 0
    end
    if cost == 0 then
      return length - expired, later, expired, member
    end
    local trimmed = backend.trim(key, expired)
    renew(log)
    return length - expired, later, expired - trimmed, member
  end

  return advance, renew
end
