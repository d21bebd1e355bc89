-- Take rows off the failed list, for the holder of the retry's lease: they were handled after all.
-- KEYS[1] meta [2] lease [3] failed [4] totals   ARGV[1] uid [2] token, then id, new outcome for each row
-- Returns {'ok', how many were on the list}; {'lost'}; {'state lost'}.
if foreign(KEYS[1], ARGV[1]) then return {'state lost'} end
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return {'lost'} end
local settled = 0
for i = 3, #ARGV, 2 do
  if redis.call('HDEL', KEYS[3], ARGV[i]) == 1 then
    redis.call('HINCRBY', KEYS[4], 'failed', -1)
    redis.call('HINCRBY', KEYS[4], ARGV[i + 1], 1)
    settled = settled + 1
  end
end
return {'ok', settled}
