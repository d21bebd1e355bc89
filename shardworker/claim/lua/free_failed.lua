-- Give back the lease under which failed rows are run again, for the holder of its token only.
-- KEYS[1] lease   ARGV[1] token   Returns {'ok'}, also where it is somebody else's or nobody's.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return {'ok'}
