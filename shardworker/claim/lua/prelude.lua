-- Put in front of every script: what they share. Scripts add before they remove, so that one that breaks off half-way
-- (out of memory) leaves a slot twice and not nowhere. Ids are text: Lua's numbers are doubles and lose integers above
-- 2^53. Slots' numbers stay below that; '..' would write them as 1e+14, so number() is used.

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function number(n)
  return string.format('%.0f', n)
end

-- True if `meta` is not that of the run that the caller knows: emptied, created again, or being reset.
local function foreign(meta, uid)
  return redis.call('HGET', meta, 'uid') ~= uid or redis.call('HEXISTS', meta, 'resetting') == 1
end

-- The head of every write of a holder: the run, the token, then the number of the write. nil: go on.
-- A repeated or late request has a number that is in already; one too high means that Redis went back.
local function refused(meta, slot, lease, uid, token, seq)
  if foreign(meta, uid) then return {'state lost'} end
  if redis.call('GET', lease) ~= token or redis.call('EXISTS', slot) == 0 then return {'lost'} end
  local ahead = tonumber(seq) - tonumber(redis.call('HGET', slot, 'seq') or 0)
  if ahead <= 0 then return {'repeated'} end
  if ahead > 1 then return {'lost'} end
  return nil
end

-- ARGV from `at` on: number of pairs outcome, count; those pairs; then pairs id, record of failed rows to the end.
-- Says how many more failed rows would fit if these do not, else nil.
local function room_if_too_many(failed, most, at)
  local first, new = at + 1 + 2 * tonumber(ARGV[at]), 0
  for i = first, #ARGV, 2 do
    if redis.call('HEXISTS', failed, ARGV[i]) == 0 then new = new + 1 end
  end
  if new == 0 then return nil end
  local room = tonumber(most) - redis.call('HLEN', failed)
  if new <= room then return nil end
  return math.max(room, 0)
end

-- At most 100 reasons (beside the five outcomes), then "other".
local function count_skip(totals, reason, n)
  local field = 'skip:' .. reason
  if redis.call('HEXISTS', totals, field) == 0 and redis.call('HLEN', totals) >= 105 then field = 'skip:other' end
  redis.call('HINCRBY', totals, field, n)
end

local function count(totals, failed, at)
  local first = at + 1 + 2 * tonumber(ARGV[at])
  for i = at + 1, first - 1, 2 do
    local field = ARGV[i]
    if string.sub(field, 1, 5) == 'skip:' then
      count_skip(totals, string.sub(field, 6), ARGV[i + 1])
    else
      redis.call('HINCRBY', totals, field, ARGV[i + 1])
    end
  end
  for i = first, #ARGV, 2 do redis.call('HSET', failed, ARGV[i], ARGV[i + 1]) end
end

local function wake_one(wake)
  redis.call('LPUSH', wake, '1')
  redis.call('LTRIM', wake, 0, 99)
end

-- `release` and `park`: KEYS meta open target slot lease totals failed wake, ARGV as in those files.
local function give_back(score)
  local name, token = ARGV[2], ARGV[3]
  if not foreign(KEYS[1], ARGV[1]) and redis.call('HGET', KEYS[4], 'closed') == token then return {'repeated'} end
  local no = refused(KEYS[1], KEYS[4], KEYS[5], ARGV[1], token, ARGV[4])
  if no then return no end
  local room = room_if_too_many(KEYS[7], ARGV[7], 10)
  if room then return {'too many', room} end
  redis.call('ZADD', KEYS[3], score, name)
  if ARGV[5] ~= '' and ARGV[5] ~= redis.call('HGET', KEYS[4], 'last_id') then
    redis.call('HSET', KEYS[4], 'last_id', ARGV[5], 'attempts', 0)
  end
  redis.call('HSET', KEYS[4], 'seq', ARGV[4], 'tally', ARGV[6], 'closed', token, 'why', ARGV[9])
  count(KEYS[6], KEYS[7], 10)
  redis.call('DEL', KEYS[5])
  redis.call('ZREM', KEYS[2], name)
  wake_one(KEYS[8])
  return {'ok'}
end
