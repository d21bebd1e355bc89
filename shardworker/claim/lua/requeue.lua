-- Put parked slots back, attempts cleared. What is not parked is left alone.
-- KEYS[1] meta [2] parked [3] ready [4] wake [5..] slots   ARGV[1] uid, then the name of each slot
-- Returns {'ok', how many} or {'state lost'}.
if foreign(KEYS[1], ARGV[1]) then return {'state lost'} end
local moved = 0
for i = 5, #KEYS do
  local name = ARGV[i - 3]
  if redis.call('ZSCORE', KEYS[2], name) then
    redis.call('ZADD', KEYS[3], number(now_ms()), name)
    redis.call('HSET', KEYS[i], 'attempts', 0)
    redis.call('ZREM', KEYS[2], name)
    wake_one(KEYS[4])
    moved = moved + 1
  end
end
return {'ok', moved}
