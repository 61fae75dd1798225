--[[
holds: a value with the slots or units that processes hold of a key, and what each of them has spent. Twin of
src/algorithm/holds.rs.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas. Their header is the message of a holder, or empty or zeros
reply   a charge: of each quota used, note. A refusal: used, wait, note
calls   to write PEXPIRE, SET; where no holder is left UNLINK
server  Redis 6.0

  'h' 1
  holder 16, sequence 8, units 4, lease 4, spent 8, ends 8   of each holder

  holder 16, sequence 8, held 4, lease 4, spent 8, acknowledged 8, is_stated 1   the message, in front of the shares of a quota

Slots are units that nobody spends. The last 4 bytes of a holder are the share of its slots, or zeros: a process is a holder
for each share that it asks for.

All numbers are absolute. The cost is the units that the holder wants. The units that it has are those of its entry if the
entry has the sequence of the message, so that several checks of one message add up. Otherwise they are `held`. `spent` is
what the holder has ever used of the key, and `acknowledged` the part of it that it knows to be charged. What is due is
`spent` less the larger of `acknowledged` and the `spent` of the entry, whatever is decided: a message that is lost, late or
repeated charges no unit twice, and the next one charges what is missing. See beside_held.lua.

Units count until the lease ends: `ends` in microseconds, the lease in milliseconds. An entry that ends later than a lease of
its own from now, because the clock stepped back, ends then. The first check of a call after the end writes that the units are
gone, even if the check is refused. An entry with something spent stays for an hour after that: its sequence stops late
messages, and its `spent` is where a process that stood still goes on. All others go.

The entry of a holder is written if its check is admitted, or if it `is_stated`. `note` is 1 if a holder that holds units had
none by its entry. It is 2 if the entry is of a later message: then the check is refused, and its holder's entry stays. A wait
of 1 says that the time at which a unit returns is unknown. A check without a message wants nothing: it is admitted whatever
is held.
]]

local ENTRY, FORMAT, EXACT = 48, '>c16dI4I4dd', 9007199254740992

-- An entry with something spent stays as if its lease were longer by so many milliseconds: for an hour more.
local LONGER = 1800000

-- The open value: the entries of the other holders and the longest time for which one of all stays; the asking holder, the units
-- that it has, what it has spent, and how much of that is due to be charged; the units of all; the note.
local others, longest, asking, base, spent, due, held, note

-- Whether this call has written a value.
local has_written = false

-- Writes the entries of the other holders and one more, which stays as if it had this lease; or removes the value.
local function write(number, entry, lease)
  local key, ttl, value = KEYS[number], 2 * (longest > lease and longest or lease) + 1000, 'h' .. others .. entry
  if value == 'h' then
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
local function state(list, number, units)
  local entry = pack(FORMAT, list.holder, list.sequence, units, list.lease, spent, now + 1000 * list.lease)
  write(number, entry, spent > 0 and list.lease + LONGER or list.lease)
end

local function room(list, number)
  local stored, kept, own, own_at, own_lease, is_changed = values[number], {}, '', 0, 0, false
  local own_holder, charged, used, stay, units = list.holder, list.acknowledged, 0, 0, list.room_of and {}
  if stored and (#stored <= ENTRY or #stored % ENTRY ~= 1 or sub(stored, 1, 1) ~= 'h') then
    return nil, WRONG_TYPE
  end
  base, note = list.held, list.held > 0 and 1 or 0
  -- The entries of others that stay as they are, from here on, are copied together.
  local from = 2
  for at = 2, stored and #stored or 0, ENTRY do
    local holder, sequence, has, lease, sum, ends = unpack(FORMAT, stored, at)
    -- Foreign bytes are hardly two whole numbers.
    if not (sequence >= 0 and sequence < EXACT and ends >= 0 and ends < EXACT and sequence % 1 + ends % 1 == 0) then
      return nil, WRONG_TYPE
    end
    local last, is_other = now + 1000 * lease, holder ~= own_holder
    last = ends < last and ends or last
    local has_changed, stays = last < ends, sum > 0 and lease + LONGER or lease
    if last <= now then
      has_changed, has = has_changed or has > 0 or sum == 0, 0
      stays = sum > 0 and last + 2000 * LONGER > now and stays
    end
    is_changed = is_changed or has_changed
    if is_other and stays then
      stay, used = stays > stay and stays or stay, used + has
      if units then
        local share = sub(holder, 13)
        units[share] = (units[share] or 0) + has
      end
    end
    if not is_other or has_changed or not stays then
      kept[#kept + 1], from = sub(stored, from, at - 1), at + ENTRY
      if stays and is_other then
        kept[#kept + 1] = pack(FORMAT, holder, sequence, has, lease, sum, last)
      elseif stays then
        own, own_at, own_lease = has_changed and pack(FORMAT, holder, sequence, has, lease, sum, last), at, stays
        if list.sequence < sequence then
          note, base, charged = 2, has, list.spent
        else
          charged = sum > charged and sum or charged
          if last > now then
            note, base = 0, list.sequence > sequence and base or has
          end
        end
      end
    end
  end
  asking, others, longest, held = own_holder, table.concat(kept) .. sub(stored or '', from), stay, used + base
  used = held
  spent, due = charged, 0
  if list.spent > charged then
    spent, due = list.spent, list.spent - charged
  end
  if is_changed then
    write(number, own or sub(stored, own_at, own_at + ENTRY - 1), own_lease)
  end
  if units then
    local share = sub(own_holder, 13)
    units[share] = (units[share] or 0) + base
  end
  local left, quota = EXACT, list
  repeat
    local free = quota.limit - used
    if quota.room_of then
      free = quota.room_of(used, units)
    end
    quota.used = quota.limit - free
    left, quota = free < left and free or left, quota.next
  until not quota
  -- Without a message, nothing is wanted.
  if note == 2 or left < 0 and list.lease > 0 then
    return -1
  end
  return left > 0 and left or 0
end

local function charge(list, number, units)
  list.state(list, number, base + units)
  local quota = list
  repeat
    reply[size + 1], reply[size + 2] = quota.used + units, note
    size, quota = size + 2, quota.next
  until not quota
end

local function refuse(list, number, cost)
  if list.is_stated > 0 and note < 2 then
    list.state(list, number, base)
  end
  local quota = list
  repeat
    local wait = (note == 2 or quota.used + cost > quota.limit and list.lease > 0) and 1 or 0
    reply[size + 1], reply[size + 2], reply[size + 3] = quota.used, cost > quota.most and -1 or wait, note
    size, quota = size + 3, quota.next
  until not quota
end

kinds.in_flight = function(list)
  if list.header ~= '' then
    list.holder, list.sequence, list.held, list.lease, list.spent, list.acknowledged, list.is_stated =
      unpack('>c16dI4I4ddB', list.header)
  else
    list.holder, list.sequence, list.held, list.lease, list.spent, list.acknowledged, list.is_stated = '', 0, 0, 0, 0, 0, 0
  end
  local quota = list
  repeat
    quota.most = quota.limit
    if #quota.header > 49 then
      read_shares(quota, 50)
    end
    quota = quota.next
  until not quota
  list.room, list.charge, list.refuse, list.state = room, charge, refuse, state
end
