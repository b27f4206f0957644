package interop;

import static interop.Trial.require;

import interop.Library.Check;
import interop.Locker.Held;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;

/** What the users of each of Redisson's locks rely on. */
final class RedissonOwn {
    private RedissonOwn() {
    }

    static final List<Check> LOCK = List.of(
            new Check("reentrancy", RedissonOwn::reentrancy),
            new Check("unlock() by another thread throws", RedissonOwn::strangerThrows),
            new Check("a lease ends without renewal", RedissonOwn::lease),
            new Check("forceUnlock wakes a waiter", RedissonOwn::forceUnlock));

    static final List<Check> FENCED = List.of(new Check("tokens rise", RedissonOwn::tokens));

    static final List<Check> FAIR = List.of(
            new Check("reentrancy", RedissonOwn::reentrancy),
            new Check("first come, first served", RedissonOwn::order));

    static final List<Check> READ_WRITE = List.of(
            new Check("readers together, writers alone", RedissonOwn::readersAndWriters),
            new Check("a writer may read too", RedissonOwn::writerReads));

    static final List<Check> MULTI = List.of(new Check("all or nothing", RedissonOwn::allOrNothing));

    private static void reentrancy(Trial t) throws Exception {
        String name = t.name("reentrancy");
        try (RedissonLocks a = RedissonLocks.open(t, 0); RedissonLocks b = RedissonLocks.open(t, 1)) {
            Held outer = Checks.granted(a, name);
            Held inner = Checks.granted(a, name);
            require(a.lock(name).getHoldCount() == 0, "another thread counts itself as holder");
            require(a.call(() -> a.lock(name).getHoldCount()) == 2, "the holder's count is not 2");
            long fence = t.info(t.key(name)).fence();
            inner.release();
            Checks.refused(b, name, "after the inner of two unlocks");
            require(t.info(t.key(name)).fence() == fence, "re-entry changed the fence");
            outer.release();
            Checks.granted(b, name).release();
        }
    }

    private static void strangerThrows(Trial t) throws Exception {
        String name = t.name("stranger-throws");
        try (RedissonLocks a = RedissonLocks.open(t, 0); RedissonLocks b = RedissonLocks.open(t, 0)) {
            Held held = Checks.granted(a, name);
            try {
                unlock(b, b.lock(name));
                throw new AssertionError("a stranger's unlock() was not refused");
            } catch (IllegalMonitorStateException expected) {
                held.release();
            }
        }
    }

    private static void lease(Trial t) throws Exception {
        String name = t.name("lease");
        try (RedissonLocks a = RedissonLocks.open(t, 0); RedissonLocks b = RedissonLocks.open(t, 1)) {
            long asked = System.nanoTime();
            require(a.call(() -> a.lock(name).tryLock(0, 800, TimeUnit.MILLISECONDS)), "a free lock was refused");
            Held next = b.waitFor(name, Duration.ofSeconds(6));
            require(next != null, "still held long after the lease");
            require(System.nanoTime() - asked >= 800_000_000L, "granted before the lease was over");
            a.releaseAsStranger(name);
            require(t.info(name).held(), "unlock() after the lease freed the next holder's lock");
            next.release();
        }
    }

    private static void forceUnlock(Trial t) throws Exception {
        String name = t.name("force");
        try (RedissonLocks a = RedissonLocks.open(t, 0); RedissonLocks b = RedissonLocks.open(t, 1)) {
            Checks.granted(a, name);
            CompletableFuture<Void> waiter = Checks.inBackground(() -> require(b.waitFor(name, Duration.ofSeconds(8)) != null, "not served"));
            Thread.sleep(300);
            require(!waiter.isDone(), "the waiter came through while the lock was held");
            require(b.lock(name).forceUnlock(), "forceUnlock found no lock");
            Checks.join(waiter, 5, "the waiter was not woken");
        }
    }

    private static void tokens(Trial t) throws Exception {
        String name = t.name("tokens");
        long last = 0;
        for (int n = 0; n < 6; n++) {
            try (RedissonLocks a = RedissonLocks.open(t, n)) {
                RFencedLock lock = (RFencedLock) a.lock(name);
                Long token = a.call(lock::lockAndGetToken);
                require(token > last, "token %d came after %d", token, last);
                require(token.equals(lock.getToken()), "getToken gave %d, the lock %d", lock.getToken(), token);
                last = token;
                a.call(() -> {
                    lock.unlock();
                    return null;
                });
            }
        }
    }

    /** Waiters of a fair lock are served in the order they came. */
    private static void order(Trial t) throws Exception {
        String name = t.name("order");
        List<Integer> served = Collections.synchronizedList(new ArrayList<>());
        List<CompletableFuture<Void>> waiters = new ArrayList<>();
        try (RedissonLocks first = RedissonLocks.open(t, 0)) {
            Held held = Checks.granted(first, name);
            for (int n = 0; n < 5; n++) {
                int place = n;
                RedissonLocks locker = RedissonLocks.open(t, n);
                waiters.add(Checks.inBackground(() -> {
                    try (locker) {
                        Held mine = locker.waitFor(name, Duration.ofSeconds(20));
                        require(mine != null, "waiter %d was not served", place);
                        served.add(place);
                        mine.release();
                    }
                }));
                int queued = n + 1;
                Trial.eventually(Duration.ofSeconds(5), "waiter " + n + " is in the queue", () -> queueLength(t, name) == queued);
            }
            held.release();
            for (CompletableFuture<Void> waiter : waiters) {
                Checks.join(waiter, 15, "a waiter was not served");
            }
        }
        require(served.equals(List.of(0, 1, 2, 3, 4)), "served in the order %s", served);
    }

    private static long queueLength(Trial t, String name) throws Exception {
        return (Long) Wire.ask(t.nodes.get(0), "LLEN", "redisson_lock_queue:{" + name + "}");
    }

    private static void readersAndWriters(Trial t) throws Exception {
        String name = t.name("readers");
        try (RedissonLocks a = RedissonLocks.open(t, 0); RedissonLocks b = RedissonLocks.open(t, 1); RedissonLocks c = RedissonLocks.open(t, 2)) {
            RLock readA = RedissonClients.shared(t.nodes.get(0), Trial.LONG_TTL).getReadWriteLock(name).readLock();
            RLock readB = RedissonClients.shared(t.nodes.get(1), Trial.LONG_TTL).getReadWriteLock(name).readLock();
            require(a.call(() -> readA.tryLock()) && b.call(() -> readB.tryLock()), "two readers did not get in together");
            Checks.refused(c, name, "to a writer beside readers");
            require(t.lockAcquire(name, Duration.ofSeconds(1), Duration.ZERO) == 0, "LOCK.ACQUIRE was granted beside readers");
            CompletableFuture<Void> writer = Checks.inBackground(() -> {
                Held mine = c.waitFor(name, Duration.ofSeconds(8));
                require(mine != null, "the writer was not served");
                require(!a.call(() -> readA.tryLock()), "a reader got in beside the writer");
                mine.release();
            });
            unlock(a, readA);
            Thread.sleep(200);
            require(!writer.isDone(), "the writer came in beside the second reader");
            unlock(b, readB);
            Checks.join(writer, 8, "the writer was not woken");
        }
    }

    private static void unlock(RedissonLocks owner, RLock lock) throws Exception {
        owner.call(() -> {
            lock.unlock();
            return null;
        });
    }

    private static void writerReads(Trial t) throws Exception {
        String name = t.name("downgrade");
        try (RedissonLocks a = RedissonLocks.open(t, 0); RedissonLocks b = RedissonLocks.open(t, 1)) {
            RReadWriteLock lock = RedissonClients.shared(t.nodes.get(0), Trial.LONG_TTL).getReadWriteLock(name);
            Held write = Checks.granted(a, name);
            require(a.call(() -> lock.readLock().tryLock()), "the writer may not read");
            write.release();
            Checks.refused(b, name, "to a writer beside the reader that wrote before");
            unlock(a, lock.readLock());
            Checks.granted(b, name).release();
        }
    }

    private static void allOrNothing(Trial t) throws Exception {
        String name = t.name("all");
        try (RedissonLocks a = RedissonLocks.open(t, 0)) {
            long fence = t.lockAcquire(name + ":2", Trial.LONG_TTL, Duration.ZERO);
            require(fence > 0, "LOCK.ACQUIRE of a free name was refused");
            Checks.refused(a, name, "although one of its names was taken");
            require(!t.info(name + ":1").held() && !t.info(name + ":3").held(), "the refused multi-lock kept some of its names");
            t.lockRelease(name + ":2", fence);
            Checks.granted(a, name).release();
        }
    }
}
