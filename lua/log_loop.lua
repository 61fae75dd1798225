--[[
log_loop: decides the usual checks of logs. Their value is there, has the quota's window as its longest, counts units,
and is not due for a trim or a new time to live. Leaves all others to `decide`: also a cost that is refused by more than a
unit, and runs spaced so unevenly that eight looks miss.

KEYS    as call
ARGV    as call
reply   admitted: 1, used, reset; of buckets also generation, and the time of the run
reply   refused: 0, used, wait, reset
calls   APPEND; if the newest run is of this time SETRANGE
server  Redis 6.0

log.lua describes the bytes. A loop creates no function: to create the functions of the general path takes as long as a check.
]]

do
  local call, unpack, pack, at, size = redis.call, struct.unpack, struct.pack, args[2], 2
  while args[at] do
    if args[at] == 0 then
      leftover = leftover or {}
      leftover[#leftover + 1], leftover[#leftover + 2] = at, 0
    else
      local list, cost, first = args[at + 8], args[at + 9], args[at + 10]
      local bucket, limit, window, usual = args[list + 3], args[list + 7], args[list + 8], args[list + 9]
      local clock = bucket > 0 and now - now % bucket + bucket - 1 or now
      local edge, most, passed, below = now - window, limit - cost, window - now, (clock + window) / 1000000
      for number = first, first + args[at + 2] - 1 do
        local stored, is_decided = values[number], false
        if stored and #stored > 40 then
          local length = #stored
          local expires, generation, found, largest, position = unpack('>I4dc9I4I4', stored)
          local newest, last = unpack('>dI4', stored, length - 11)
          -- A log of 2^32 units is trimmed.
          local fits = (last - position) % 4294967296 + cost < 4294967296
          if found == usual and fits and largest >= limit and newest <= clock and newest > edge and expires >= below then
            local time, count, index = unpack('>d', stored, 30), (length - 29) / 12, 0
            -- The first run that counts is from `from` to `to`. Runs are spaced about evenly: probes are guesses.
            local from, to, from_time, to_time, expired = 1, count - 1, time, newest, time
            for _ = 1, time <= edge and 8 or 0 do
              index = (edge - from_time) / (to_time - from_time) * (to - from + 1)
              index = from + (index - index % 1)
              if not (2 * index < count) then
                break
              end
              expired, position, time = unpack('>dI4d', stored, index * 12 + 18)
              if time <= edge then
                from, from_time = index + 1, time
              elseif expired > edge then
                to, to_time = index - 1, expired
              else
                break
              end
            end
            local used = (last - position) % 4294967296
            local is_found = 2 * index < count and (index == 0 or expired <= edge and time > edge)
            if is_found and used <= most then
              local run = pack('>dI4', clock, (last + cost) % 4294967296)
              if newest < clock then
                call('APPEND', KEYS[number], run)
              else
                call('SETRANGE', KEYS[number], length - 12, run)
              end
              values[number], reply[size + 1], reply[size + 2], reply[size + 3] = true, 1, used + cost, time + passed
              size, is_decided = size + 3, true
              if bucket > 0 then
                reply[size + 1], reply[size + 2], size = generation, clock, size + 2
              end
            elseif is_found and used == most + 1 and used <= limit then
              -- The cost fits as soon as one unit is gone.
              reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = 0, used, time + passed, time + passed
              size, is_decided = size + 4, true
            end
          end
        end
        if not is_decided then
          leftover = leftover or {}
          reply[size + 1], size, leftover[#leftover + 1], leftover[#leftover + 2] = false, size + 1, at, number
        end
      end
    end
    at = at + args[at + 1]
  end
  if not leftover then
    return cmsgpack.pack(reply)
  end
end
