package interop;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's clients are heavy, so one is kept for each node and watchdog time; its lockers are told apart by their
 * threads, as Redisson does it.
 */
final class RedissonClients {
    private RedissonClients() {
    }

    private static final Map<String, RedissonClient> SHARED = new ConcurrentHashMap<>();

    static RedissonClient shared(String address, Duration watchdog) {
        return SHARED.computeIfAbsent(address + " " + watchdog, absent -> create(address, watchdog));
    }

    /** A client of one's own, to be shut down like a process that dies. */
    static RedissonClient create(String address, Duration watchdog) {
        // A fair lock keeps the place of a waiter whose node died for five minutes unless told otherwise.
        Config config = new Config().setLockWatchdogTimeout(watchdog.toMillis()).setFairLockWaitTimeout(1000).setThreads(4).setNettyThreads(4);
        config.useSingleServer().setAddress("redis://" + address).setConnectionMinimumIdleSize(1).setConnectionPoolSize(8)
                .setSubscriptionConnectionMinimumIdleSize(1);
        return Redisson.create(config);
    }
}
