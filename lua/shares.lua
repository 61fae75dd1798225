--[[
shares: the shares of a quota and their rule, for logs and slots in flight. Twin of src/algorithm/share_room.rs.

KEYS    none
ARGV    none; the shares stand in the header of a quota
reply   none; defines `read_shares`
calls   none
server  Redis 6.0

  share 4                        the id of the share that asks, or zeros
  id 4, reserve 4, bound 4       of each share of the quota

`share` becomes a field of the quota, and `most`: what that share may charge if nothing is used. `room_of(used, units)` returns
what it may still charge when so many units are used, of which `units` are those of each share, by id.
]]

-- Reads the shares of a quota, which begin at this place of its header.
local function read_shares(quota, at)
  -- Not those of the prelude: a function takes longer to create for each variable of others that it uses.
  local unpack, sub, max, min = struct.unpack, string.sub, math.max, math.min
  local header, limit, shares, asking, others = quota.header, quota.limit, {}, nil, 0
  local id = sub(header, at, at + 3)
  for from = at + 4, #header, 12 do
    local share = {}
    share.id, share.reserve, share.most = unpack('>c4I4I4', header, from)
    if share.id == id then
      asking = share
    else
      shares[#shares + 1], others = share, others + share.reserve
    end
  end
  local own = asking or { reserve = 0, most = limit }
  quota.share = id ~= '\0\0\0\0' and id
  quota.most = min(limit, own.most, max(own.reserve, limit - others))
  quota.room_of = function(used, units)
    local charged, kept = asking and units[id] or 0, 0
    local without = used - charged
    for index = 1, #shares do
      local share = shares[index]
      local of_share = units[share.id] or 0
      without, kept = without - of_share, kept + max(of_share, share.reserve)
    end
    if asking then
      kept = kept + without
    else
      charged = without
    end
    return min(limit - used, min(own.most, max(own.reserve, limit - kept)) - charged)
  end
end
