--[[
in_flight: a value with the slots that processes hold at the same time. Twin of src/algorithm/in_flight.rs.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas. Their header is the message of a holder, or empty or zeros
reply   a charge: of each quota used, note. A refusal: used, wait, note
calls   to write PEXPIRE, SET; where no holder is left UNLINK
server  Redis 6.0

  'i' 1
  holder 16, sequence 8, slots 4, lease 4, ends 8   of each holder

  holder 16, sequence 8, held 4, lease 4, is_stated 1   the message, in front of the shares of a quota

The last 4 bytes of a holder are the share of its slots, or zeros: a process is a holder for each share that it asks for.

The cost is the slots that the holder wants. The slots that it has are those of its entry if the entry has the sequence of the
message, so that several checks of one message add up. Otherwise they are `held`. An entry counts until its lease ends: `ends`
in microseconds, the lease in milliseconds. The first check of a call after that removes it, and one that ends later than a
lease of its own from now, because the clock stepped back, ends then. Both are written even if the check is refused.

The entry of a holder is written if its check is admitted, or if it `is_stated`. `note` is 1 if a holder that holds slots had
no entry. It is 2 if the entry is of a later message: then the check is refused, and its holder's entry stays. A wait of 1
says that the time at which a slot returns is unknown. A check without a message wants no slot: it is admitted whatever is held.
]]

local ENTRY, FORMAT, EXACT = 40, '>c16dI4I4d', 9007199254740992

-- The open value: the entries of the other holders and their longest lease, the slots of the asking holder, and the note
-- about it.
local others, longest, base, note

-- Whether this call has written a value.
local has_written = false

-- Writes the entries of all holders, of which one has the longest lease, or removes the value.
local function write(number, entries, lease)
  local key, ttl, value = KEYS[number], 2 * lease + 1000, 'i' .. entries
  if entries == '' then
    call('UNLINK', key)
    value = false
  else
    -- A full server accepts PEXPIRE, and then the rest of the script: what is held can always be stated.
    if values[number] and not has_written then
      call('PEXPIRE', key, ttl)
    end
    call('SET', key, value, 'PX', ttl)
    has_written = true
  end
  values[number] = value
end

-- Writes the entry of the asking holder.
local function state(list, number, slots)
  local entry = pack(FORMAT, list.holder, list.sequence, slots, list.lease, now + 1000 * list.lease)
  write(number, others .. entry, max(longest, list.lease))
end

local function room(list, number)
  local stored, kept, own, own_lease, is_changed, used = values[number], {}, '', 0, false, 0
  local units = list.room_of and {}
  if stored and (#stored <= ENTRY or #stored % ENTRY ~= 1 or sub(stored, 1, 1) ~= 'i') then
    return nil, WRONG_TYPE
  end
  longest, base, note = 0, list.held, list.held > 0 and 1 or 0
  -- The entries of others that stay as they are, from here on, are copied together.
  local from = 2
  for at = 2, stored and #stored or 0, ENTRY do
    local holder, sequence, slots, lease, ends = unpack(FORMAT, stored, at)
    -- Foreign bytes are hardly two whole numbers.
    if not (sequence >= 0 and sequence < EXACT and ends >= 0 and ends < EXACT and sequence % 1 + ends % 1 == 0) then
      return nil, WRONG_TYPE
    end
    local last, is_other = now + 1000 * lease, holder ~= list.holder
    last = ends < last and ends or last
    is_changed = is_changed or last < ends or last <= now
    if is_other and last > now then
      longest, used = lease > longest and lease or longest, used + slots
      if units then
        local share = sub(holder, 13)
        units[share] = (units[share] or 0) + slots
      end
    end
    if not is_other or last < ends or last <= now then
      kept[#kept + 1], from = sub(stored, from, at - 1), at + ENTRY
      local entry = last < ends and pack(FORMAT, holder, sequence, slots, lease, last) or sub(stored, at, at + ENTRY - 1)
      if last > now and is_other then
        kept[#kept + 1] = entry
      elseif last > now then
        own, own_lease, note = entry, lease, list.sequence < sequence and 2 or 0
        base = list.sequence > sequence and base or slots
      end
    end
  end
  others, used = table.concat(kept) .. sub(stored or '', from), used + base
  if is_changed then
    write(number, others .. own, max(longest, own_lease))
  end
  if units then
    local share = sub(list.holder, 13)
    units[share] = (units[share] or 0) + base
  end
  local left, quota = 4294967296, list
  repeat
    quota.used = quota.room_of and quota.limit - quota.room_of(used, units) or used
    left, quota = min(left, quota.limit - quota.used), quota.next
  until not quota
  -- Without a message, no slot is wanted.
  return (note == 2 or left < 0 and list.lease > 0) and -1 or max(left, 0)
end

local function charge(list, number, units)
  state(list, number, base + units)
  local quota = list
  repeat
    reply[size + 1], reply[size + 2] = quota.used + units, note
    size, quota = size + 2, quota.next
  until not quota
end

local function refuse(list, number, cost)
  if list.is_stated > 0 and note < 2 then
    state(list, number, base)
  end
  local quota = list
  repeat
    local wait = (note == 2 or quota.used + cost > quota.limit and list.lease > 0) and 1 or 0
    reply[size + 1], reply[size + 2], reply[size + 3] = quota.used, cost > quota.most and -1 or wait, note
    size, quota = size + 3, quota.next
  until not quota
end

kinds.in_flight = function(list)
  list.holder, list.sequence, list.held, list.lease, list.is_stated = '', 0, 0, 0, 0
  if list.header ~= '' then
    list.holder, list.sequence, list.held, list.lease, list.is_stated = unpack('>c16dI4I4B', list.header)
  end
  local quota = list
  repeat
    quota.most = quota.limit
    if #quota.header > 33 then
      read_shares(quota, 34)
    end
    quota = quota.next
  until not quota
  list.room, list.charge, list.refuse = room, charge, refuse
end
