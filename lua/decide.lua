--[[
decide: reads the checks of one call and decides them one after the other. Each asks all its quotas,
and charges all of them if all admit it, else none. A check that fails, for example on a key of
another type, is answered by the text of the error and leaves its neighbours alone.

KEYS    the stored counts: for each check those of its quotas, each once
ARGV    check: cost, quotas
ARGV    quota: algorithm, parts, key, limit, window
reply   check: time
reply   quota: used, wait, reset, stamp, mark, back
calls   those of the algorithms
server  Redis 5.0

The reply to a check is an array of its time and, flat, of its quotas; or the text of an error.
cost, limit and used are units; window, wait, reset and time whole microseconds. `quotas` says how
many follow; `key` is an index into KEYS; `parts` is into how many buckets a window is divided. A
wait of 0 admits, one of -1 never ends. A cost of 0 only looks. Quotas of one check that share a key
share its count: it is charged once. By time, stamp, mark and back of the strictest of them, refund
finds again what was charged.
]]

local function ask(check)
  local admitted = true
  for _, quota in ipairs(check.quotas) do
    quota.asked = quota.algorithm.ask(quota, check.cost)
    admitted = admitted and quota.asked.wait == 0
  end
  return admitted
end

-- The quotas that charge: of those that share a count the strictest, by which it drains.
local function charging(quotas)
  local strictest = {}
  for _, quota in ipairs(quotas) do
    local other = strictest[quota.key]
    if not other or quota.limit < other.limit then
      strictest[quota.key] = quota
    end
  end
  return strictest
end

local function charge(check)
  local strictest = charging(check.quotas)
  for _, quota in ipairs(check.quotas) do
    if strictest[quota.key] == quota then
      quota.algorithm.charge(quota, check.cost, quota.asked)
    end
  end
  for _, quota in ipairs(check.quotas) do
    local charged = strictest[quota.key].asked
    quota.looked = quota.algorithm.look(quota, charged, quota.asked, check.cost)
  end
end

local function decide(check)
  local charged = ask(check) and check.cost > 0
  if charged then
    charge(check)
  end
  local reply = { now }
  for _, quota in ipairs(check.quotas) do
    local answer = quota.looked or quota.asked
    -- Whole already, but in Lua 5.4 a quotient is a float, which math.floor makes an integer.
    reply[#reply + 1] = math.floor(answer.used)
    reply[#reply + 1] = math.floor(answer.wait)
    reply[#reply + 1] = math.floor(answer.reset)
    reply[#reply + 1] = math.floor(answer.stamp or 0)
    reply[#reply + 1] = math.floor(answer.mark or 0)
    reply[#reply + 1] = math.floor(answer.back or 0)
  end
  return reply
end

-- Reads the check whose first argument is at `at`, and where the next one begins.
local function read(at)
  local check = { cost = tonumber(ARGV[at]), quotas = {} }
  local count = tonumber(ARGV[at + 1])
  at = at + 2
  for index = 1, count do
    check.quotas[index] = {
      algorithm = algorithms[ARGV[at]],
      parts = tonumber(ARGV[at + 1]),
      key = KEYS[tonumber(ARGV[at + 2])],
      limit = tonumber(ARGV[at + 3]),
      window = tonumber(ARGV[at + 4]),
    }
    at = at + 5
  end
  return check, at
end

local replies = {}
local at = 1
while at <= #ARGV do
  local check
  check, at = read(at)
  local decided, reply = pcall(decide, check)
  if not decided then
    -- Since Redis 7.0 an error is a table, before that a text.
    reply = type(reply) == 'table' and reply.err or tostring(reply)
  end
  replies[#replies + 1] = reply
end
return replies
