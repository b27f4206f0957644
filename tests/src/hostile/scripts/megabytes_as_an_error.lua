-- #3 An error text of 8 MB.
error(string.rep("e", 8 * 1024 * 1024))
