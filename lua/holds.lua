--[[
holds: a value with the units that processes hold of a key, beside its counts, and what each of them has spent. Twin of
src/algorithm/holds.rs.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of one quota. Its header is the message of a holder, or empty
reply   a charge: used, note. A refusal: used, wait, note
calls   to write PEXPIRE, SET; where no holder is left UNLINK
server  Redis 6.0

  'h' 1
  holder 16, sequence 8, units 4, lease 4, spent 8, ends 8   of each holder

  holder 16, sequence 8, units 4, lease 4, spent 8, from 8, is_stated 1   the message

All numbers are absolute. `spent` is what the holder has ever used of the key, and `from` the part of it that was acknowledged.
Charged is `spent` less the larger of `from` and the `spent` of the entry, whatever is decided: a message that is lost, late or
repeated charges no unit twice, and the next one charges what is missing. The cost is the units that the holder wants. The units
that it has, `note`, and when an entry is written are as in in_flight.lua.

Units count until the lease ends. The entry then stays for KEEP without units: its sequence stops late messages, and its
`spent` is where a process that stood still goes on. The first check after the end writes that the units are gone.

This list is the first one of its level. The lists behind it count the units of the level: their kinds end with `_beside`. They
have the room that is left beside what is held and what was spent, and with a message they are not charged the cost. Only
the client adds what is held to the used units. The `limit` of the quota is how many lists are behind it: the last one of them
writes the entry, so that a call that fails charges too much, and never too little.
]]

local HOLD, HOLD_FORMAT, KEEP, WHOLE = 48, '>c16dI4I4dd', 3600000000, 9007199254740992

-- The holders of the level that is decided: the entries of the others and their longest lease, the entry of the asking one and
-- its lease, its units and what it has spent, the units of all, what is due to be charged, the note, the units to write, and
-- how many lists are still behind.
local holds

-- Returns the time to live of a value whose longest lease this is.
local function holds_ttl(lease)
  return 2 * lease + 1000 + KEEP / 1000
end

-- Opens the holders of a key, as of the message of a list. Returns why they cannot be read, if so.
local function open_holds(list, number)
  local stored, kept, own, own_lease, longest, others, is_changed = values[number], {}, '', 0, 0, 0, false
  local base, from, note = list.held, list.from, list.held > 0 and 1 or 0
  if stored and (#stored <= HOLD or #stored % HOLD ~= 1 or sub(stored, 1, 1) ~= 'h') then
    return WRONG_TYPE
  end
  for at = 2, stored and #stored or 0, HOLD do
    local holder, sequence, units, lease, spent, ends = unpack(HOLD_FORMAT, stored, at)
    -- Foreign bytes are hardly three whole numbers.
    if not (sequence >= 0 and sequence < WHOLE and spent >= 0 and spent < WHOLE and ends >= 0 and ends < WHOLE
        and sequence % 1 + spent % 1 + ends % 1 == 0) then
      return WRONG_TYPE
    end
    local last = min(ends, now + 1000 * lease)
    if last < ends or last <= now and units > 0 then
      is_changed, units = true, last > now and units or 0
    end
    -- An older entry is forgotten with the next write, and as good as forgotten now.
    if last + KEEP > now then
      local entry = pack(HOLD_FORMAT, holder, sequence, units, lease, spent, last)
      if holder ~= list.holder then
        kept[#kept + 1], others, longest = entry, others + units, max(longest, lease)
      else
        own, own_lease = entry, lease
        if list.sequence < sequence then
          note, base, from = 2, units, list.spent
        else
          from = max(from, spent)
          if last > now then
            note, base = 0, list.sequence > sequence and list.held or units
          end
        end
      end
    end
  end
  holds = {
    list = list, number = number, others = table.concat(kept), longest = longest, own = own, own_lease = own_lease, base = base,
    spent = max(list.spent, from), used = others + base, due = max(list.spent - from, 0), note = note, is_changed = is_changed,
    units = 0, behind = 0,
  }
end

-- Writes the entries of all holders, and that of the asking one with these units, or as it is.
local function write_holds(units)
  local list, own, lease = holds.list, holds.own, holds.own_lease
  if units then
    own, lease = pack(HOLD_FORMAT, list.holder, list.sequence, units, list.lease, holds.spent, now + 1000 * list.lease), list.lease
  end
  local key, value = KEYS[holds.number], 'h' .. holds.others .. own
  if value == 'h' then
    call('UNLINK', key)
    value = false
  else
    call('SET', key, value, 'PX', holds_ttl(max(holds.longest, lease)))
  end
  values[holds.number] = value
end

-- Decides which units the asking holder has: they are written behind the last list of the level. Without, only what has ended is.
local function state_units(list, units)
  if units then
    -- A full server accepts PEXPIRE, and then the rest of the script: what was spent can always be charged.
    if values[holds.number] then
      call('PEXPIRE', KEYS[holds.number], holds_ttl(max(holds.longest, list.lease)))
    end
    holds.units, holds.behind = units, list.limit
  elseif holds.is_changed then
    write_holds()
  end
end

local function room(list, number)
  local problem = open_holds(list, number)
  if problem then
    return nil, problem
  end
  return holds.note == 2 and -1 or 4294967296
end

local function charge(list, _, units)
  state_units(list, holds.base + units)
  reply[size + 1], reply[size + 2], size = min(holds.used + units, 4294967295), holds.note, size + 2
end

local function refuse(list)
  state_units(list, list.is_stated > 0 and holds.note < 2 and holds.base)
  reply[size + 1], reply[size + 2], reply[size + 3] = min(holds.used, 4294967295), holds.note == 2 and 1 or 0, holds.note
  size = size + 3
end

kinds.held = function(list)
  list.holder, list.sequence, list.held, list.lease, list.spent, list.from, list.is_stated = '', 0, 0, 0, 0, 0, 0
  if list.header ~= '' then
    list.holder, list.sequence, list.held, list.lease, list.spent, list.from, list.is_stated =
      unpack('>c16dI4I4ddB', list.header)
  end
  list.room, list.charge, list.refuse = room, charge, refuse
end

local function room_beside(list, number)
  local left, problem = list.plain_room(list, number)
  return left and (left < 0 and left or max(left - holds.due - holds.used, 0)), problem
end

-- Charges what was spent, and answers. The last list of a message writes the entry.
local function refuse_beside(list, number, cost)
  if holds.due > 0 then
    local before = size
    list.plain_charge(list, number, holds.due)
    while size > before do
      reply[size], size = nil, size - 1
    end
    list.plain_room(list, number)
  end
  list.plain_refuse(list, number, cost)
  if holds.behind > 0 then
    holds.behind = holds.behind - 1
    if holds.behind == 0 then
      write_holds(holds.units)
    end
  end
end

-- A message is charged nothing else: it is answered as a look.
local function charge_beside(list, number, units)
  if holds.list.holder == '' then
    list.plain_charge(list, number, units)
  else
    refuse_beside(list, number, 0)
  end
end

for _, kind in ipairs({ 'log', 'counters' }) do
  local prepare = kinds[kind]
  kinds[kind .. '_beside'] = function(list)
    prepare(list)
    list.plain_room, list.plain_charge, list.plain_refuse = list.room, list.charge, list.refuse
    list.room, list.charge, list.refuse = room_beside, charge_beside, refuse_beside
  end
end
