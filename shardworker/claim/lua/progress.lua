-- How far a run is, in one command: for progress, which must not cost the worker anything.
-- KEYS[1] meta [2] totals [3] done [4] failed
-- Returns {rows done, failed rows on the list, slots of the run, slots done or proven empty}; {} if there is no run.
local meta = redis.call('HMGET', KEYS[1], 'slots', 'split_off', 'jumped')
if not meta[1] then return {} end
local rows = 0
for _, n in ipairs(redis.call('HMGET', KEYS[2], 'changed', 'unchanged', 'deleted', 'skipped', 'failed')) do
  rows = rows + tonumber(n or 0)
end
local slots = tonumber(meta[1]) + tonumber(meta[2] or 0)
local done = redis.call('HLEN', KEYS[3]) + tonumber(meta[3] or 0)
return {number(rows), redis.call('HLEN', KEYS[4]), number(slots), number(done)}
