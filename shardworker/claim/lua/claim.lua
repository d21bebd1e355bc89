-- Take the lease of a picked slot. SET NX decides; the ticket keeps out a late request, whose slot may be done by now.
-- KEYS[1] meta [2] open [3] parked [4] slot [5] lease
-- ARGV[1] uid [2] name [3] token [4] ticket [5] ttl in ms [6] first id [7] last id [8] owner's label [9] SLOT_ATTEMPTS
-- Returns {'claimed', first, last, last_id or '', seq, tally, attempts}; {'gone'}: pick again; {'busy'}: somebody
--   holds it; {'parked', attempts}: it ended too many holders; {'state lost'}.
if foreign(KEYS[1], ARGV[1]) then return {'state lost'} end
local name, token, ttl = ARGV[2], ARGV[3], tonumber(ARGV[5])

local function claimed()
  local slot = redis.call('HMGET', KEYS[4], 'first', 'last', 'last_id', 'seq', 'tally', 'attempts')
  return {'claimed', slot[1], slot[2], slot[3] or '', slot[4] or '0', slot[5] or '', slot[6]}
end

if redis.call('GET', KEYS[5]) == token and redis.call('EXISTS', KEYS[4]) == 1 then return claimed() end
if redis.call('ZSCORE', KEYS[2], name) ~= ARGV[4] then return {'gone'} end
if redis.call('HEXISTS', KEYS[4], 'first') == 0 and string.find(name, '.', 1, true) then return {'state lost'} end

local now = now_ms()
local held = redis.call('PTTL', KEYS[5])
if held ~= -2 then
  -- The hint was too early. A key without a time to live is no lease of ours; it is looked at again after one.
  if held < 0 or held > ttl then held = ttl end
  redis.call('ZADD', KEYS[2], number(now + held), name)
  return {'busy'}
end
redis.call('HSETNX', KEYS[4], 'first', ARGV[6])
redis.call('HSETNX', KEYS[4], 'last', ARGV[7])
if tonumber(redis.call('HGET', KEYS[4], 'attempts') or 0) >= tonumber(ARGV[9]) then
  redis.call('ZADD', KEYS[3], number(now), name)
  redis.call('HSET', KEYS[4], 'why', 'SLOT_ATTEMPTS')
  redis.call('ZREM', KEYS[2], name)
  return {'parked', ARGV[9]}
end
if not redis.call('SET', KEYS[5], token, 'NX', 'PX', ttl) then return {'busy'} end
redis.call('ZADD', KEYS[2], number(now + ttl), name)
redis.call('HINCRBY', KEYS[4], 'attempts', 1)
redis.call('HSET', KEYS[4], 'owner', ARGV[8], 'since', number(now))
redis.call('HDEL', KEYS[4], 'closed', 'why')
return claimed()
