package interop;

import static interop.Trial.LONG_TTL;

import interop.Library.Check;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;

/** Redisson's locks. The ttl is the watchdog's: locks are taken without a lease and renewed by it. */
final class RedissonLocks implements Locker {
    private static final Function<String, List<String>> THREE = name -> List.of(name + ":1", name + ":2", name + ":3");

    static final List<Library> LIBRARIES = List.of(
            library("redisson", "RLock", List::of, (clients, name) -> clients.get(0).getLock(name), RedissonOwn.LOCK),
            library("redisson-fenced", "RFencedLock", List::of, (clients, name) -> clients.get(0).getFencedLock(name), RedissonOwn.FENCED),
            library("redisson-fair", "fair lock", List::of, (clients, name) -> clients.get(0).getFairLock(name), RedissonOwn.FAIR),
            library("redisson-readwrite", "RReadWriteLock", List::of, (clients, name) -> clients.get(0).getReadWriteLock(name).writeLock(),
                    RedissonOwn.READ_WRITE),
            library("redisson-multi", "MultiLock", THREE, RedissonLocks::multiLock, RedissonOwn.MULTI),
            library("redisson-redlock", "RedLock, one address", List::of, RedissonLocks::redLock, List.of()));

    private static Library library(String id, String variant, Function<String, List<String>> keys,
            BiFunction<List<RedissonClient>, String, RLock> get, List<Check> own) {
        return new Library(id, "Redisson", variant, "org.redisson/redisson",
                (addresses, ttl) -> new RedissonLocks(addresses, ttl, get), keys, true, false, own);
    }

    private static RLock multiLock(List<RedissonClient> clients, String name) {
        RLock[] locks = THREE.apply(name).stream().map(clients.get(0)::getLock).toArray(RLock[]::new);
        return clients.get(0).getMultiLock(locks);
    }

    /** Three locks of one name at one address: the second and third are re-entries. */
    private static RLock redLock(List<RedissonClient> clients, String name) {
        RedissonClient client = clients.get(0);
        return new RedissonRedLock(client.getLock(name), client.getLock(name), client.getLock(name));
    }

    private final List<RedissonClient> clients = new ArrayList<>();
    private final List<RedissonClient> mine = new ArrayList<>();
    private final BiFunction<List<RedissonClient>, String, RLock> get;
    private final Duration ttl;
    /** Redisson's owner is the client and the thread. */
    private final ExecutorService thread = Executors.newSingleThreadExecutor(work -> {
        Thread daemon = new Thread(work);
        daemon.setDaemon(true);
        return daemon;
    });

    private RedissonLocks(List<String> addresses, Duration ttl, BiFunction<List<RedissonClient>, String, RLock> get) {
        this.get = get;
        this.ttl = ttl;
        for (String address : addresses) {
            if (ttl.equals(Trial.SHORT_TTL)) {
                mine.add(RedissonClients.create(address, ttl)); // close() stops its watchdog, and its locks expire
                clients.add(mine.get(mine.size() - 1));
            } else {
                clients.add(RedissonClients.shared(address, ttl));
            }
        }
    }

    /** Runs on this locker's thread. */
    <T> T call(Callable<T> work) throws Exception {
        try {
            return thread.submit(work).get();
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw (Error) failed.getCause();
        }
    }

    RLock lock(String name) {
        return get.apply(clients, name);
    }

    @Override
    public Held tryLock(String name) throws Exception {
        RLock lock = lock(name);
        return held(lock, call(() -> {
            try {
                return lock.tryLock();
            } catch (RedisException refused) {
                // The key is there but no hash: LOCK.ACQUIRE holds it, or somebody's SET. A Redis says the same.
                if (String.valueOf(refused.getMessage()).contains("WRONGTYPE")) {
                    return false;
                }
                throw refused;
            }
        }));
    }

    @Override
    public Held waitFor(String name, Duration limit) throws Exception {
        RLock lock = lock(name);
        long deadline = System.nanoTime() + limit.toNanos();
        return held(lock, call(() -> {
            boolean granted = false;
            while (!granted && System.nanoTime() < deadline) { // RedLock gives up long before its time
                granted = lock.tryLock((deadline - System.nanoTime()) / 1_000_000, TimeUnit.MILLISECONDS);
            }
            return granted;
        }));
    }

    private Held held(RLock lock, boolean granted) {
        return !granted ? null : new Held() {
            /** The watchdog's part: what is left to see is that the lock outlives its ttl. */
            @Override
            public void extend() throws Exception {
                if (thread.isShutdown()) {
                    throw new NotHeld();
                }
                Thread.sleep(ttl.toMillis());
            }

            @Override
            public void release() throws Exception {
                unlock(lock);
            }
        };
    }

    private void unlock(RLock lock) throws Exception {
        try {
            call(() -> {
                lock.unlock();
                return null;
            });
        } catch (IllegalMonitorStateException notOwner) {
            throw new NotHeld();
        }
    }

    @Override
    public void releaseAsStranger(String name) throws Exception {
        try {
            unlock(lock(name));
        } catch (NotHeld told) {
            // RLock says so; MultiLock and RedLock do not all.
        }
    }

    @Override
    public void close() {
        thread.shutdown();
        mine.forEach(client -> client.shutdown(0, 0, TimeUnit.SECONDS));
    }

    static RedissonLocks open(Trial t, int n) throws Exception {
        return (RedissonLocks) t.open(n, LONG_TTL);
    }
}
