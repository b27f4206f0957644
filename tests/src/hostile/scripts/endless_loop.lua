-- #4 while true do end
while true do end
