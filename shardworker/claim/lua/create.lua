-- Create a run, or find the one that is there: the first one's bounds, slots and as_of hold for all.
-- KEYS[1] meta [2..] keys that no run has before its first claim   ARGV[1] 1: create it although some of these are there
--   (what they say is checked elsewhere) [2..] field, value, ... of a new run
-- Returns the fields and values of meta, or {'resetting'}, or {'remains', key}: meta is gone and others are not. A run
--   created beside them would take slots of other bounds for its own.
if redis.call('HEXISTS', KEYS[1], 'resetting') == 1 then return {'resetting'} end
if redis.call('HEXISTS', KEYS[1], 'uid') == 0 then
  for i = 2, ARGV[1] == '1' and 1 or #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 1 then return {'remains', KEYS[i]} end
  end
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
end
return redis.call('HGETALL', KEYS[1])
