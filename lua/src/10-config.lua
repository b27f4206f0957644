-- What an operator may change. The two times of retention can be set when the library is built: see README.md.

-- How long the last fence of an idle lock is remembered after the lock's end.
local RETENTION_MS = 600000
-- How long a high-water mark of FENCE.* lives after its last use; 0 = for ever.
local MARK_RETENTION_MS = 0
-- A waiter that has not asked again for this long has left.
local LEASE_MS = 3000
-- How often a waiter must ask again at the latest.
local HEARTBEAT_MS = 1000

-- The limits of the contract.
local RESOURCE_BYTES_MAX = 512
local OWNER_BYTES_MAX = 256
local VALUE_BYTES_MAX = 1024
local LABEL_BYTES_MAX = 256
local PATTERN_BYTES_MAX = 1024
local TTL_MS_MAX = 31536000000
local WAIT_MS_MAX = 3600000
local FENCE_MAX = 9007199254740991
local MULTI_RESOURCES_MAX = 256
local SCAN_COUNT_MAX = 10000
local SCAN_COUNT_DEFAULT = '10'
local WAITERS_MAX = 10000

