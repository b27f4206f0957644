-- #3 An error reply of 8 MB.
return redis.error_reply(string.rep("e", 8 * 1024 * 1024))
