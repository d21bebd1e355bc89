-- Begin a reset: from now on every script refuses and nobody creates the run. Refused while a lease lives.
-- KEYS[1] meta [2] open [3..] leases of all slots in `open` and of the retry   ARGV names of the slots in `open`
-- Returns {'ok'}; {'alive', name}: somebody works on it; {'again'}: `open` has changed, read it once more.
if redis.call('ZCARD', KEYS[2]) ~= #ARGV then return {'again'} end
for i = 1, #ARGV do
  if not redis.call('ZSCORE', KEYS[2], ARGV[i]) then return {'again'} end
end
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then return {'alive', KEYS[i]} end
end
redis.call('HSET', KEYS[1], 'resetting', '1')
return {'ok'}
