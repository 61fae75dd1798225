--[[
settle: brings a log to the present: what has expired is trimmed, and what is after now is rewound to it.

KEYS    none; is given one
ARGV    none; is given a count
reply   settle, renew of a kind of log
calls   those of the kind; after a trim or rewind PEXPIRE; when all has expired, UNLINK
server  Redis 5.0
]]

return function(kind)
  local call = redis.call

  -- Has a log live for as long as it can count.
  local function renew(log)
    call('PEXPIRE', log.key, log.life)
  end

  -- Of a log that holds so many units, with such an oldest and newest: how many count, when the oldest of
  -- them was charged, where that is known, how many expired ones are still before them, and what `push`
  -- is to be told. A cost of 0 only looks.
  local function settle(log, cost, length, oldest, newest, member)
    local key, window = log.key, log.window
    if length == 0 then
      return 0, nil, 0
    end
    if newest > present and cost > 0 then
      -- A clock that stepped back: so none counts for longer than a window. Once for each step. PEXPIRE comes
      -- first: a full server grants it, and then the rest of the script.
      renew(log)
      kind.rewind(key, length)
    end
    if oldest + window > now then
      return length, oldest, 0, member
    end
    if newest + window <= now then
      -- All have expired: the log is gone.
      if cost > 0 then
        call('UNLINK', key)
      end
      return 0, nil, 0
    end
    local expired, later = kind.expired(key, length, now - window)
    if length - expired == 1 then
      later = newest + 0
    end
    if cost == 0 then
      return length - expired, later, expired, member
    end
    local trimmed = kind.trim(key, expired)
    renew(log)
    return length - expired, later, expired - trimmed, member
  end

  return settle, renew
end
