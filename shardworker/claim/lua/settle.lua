-- Take rows off the failed list, for the holder of the retry's lease: they were handled after all. Rows that failed
-- again stay on it with their new record.
-- KEYS[1] meta [2] lease [3] failed [4] totals
-- ARGV[1] uid [2] token, then for each row: id, new outcome, detail (the record of one that failed again, the reason of
--   one that was skipped, else '')
-- Returns {'ok', how many were taken off}; {'lost'}; {'state lost'}.
if foreign(KEYS[1], ARGV[1]) then return {'state lost'} end
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return {'lost'} end
local settled = 0
for i = 3, #ARGV, 3 do
  local id, outcome, detail = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if outcome == 'failed' then
    if redis.call('HEXISTS', KEYS[3], id) == 1 then redis.call('HSET', KEYS[3], id, detail) end
  elseif redis.call('HDEL', KEYS[3], id) == 1 then
    redis.call('HINCRBY', KEYS[4], 'failed', -1)
    redis.call('HINCRBY', KEYS[4], outcome, 1)
    if outcome == 'skipped' then count_skip(KEYS[4], detail, 1) end
    settled = settled + 1
  end
end
return {'ok', settled}
