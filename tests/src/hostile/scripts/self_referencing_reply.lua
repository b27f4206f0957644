-- #4 33 bytes that held up everybody for 4.7 s.
local t={} t[1]=t t[2]=t return t
