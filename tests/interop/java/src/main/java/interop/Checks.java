package interop;

import static interop.Trial.LONG_TTL;
import static interop.Trial.SHORT_TTL;
import static interop.Trial.require;

import interop.Library.Check;
import interop.Locker.Held;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The checks every lock library must pass; ../README.md says what each means. */
final class Checks {
    private Checks() {
    }

    static final List<Check> COMMON = List.of(
            new Check("acquire", Checks::acquire),
            new Check("contention", Checks::contention),
            new Check("extend", Checks::extend),
            new Check("expiry", Checks::expiry),
            new Check("stranger", Checks::stranger),
            new Check("waiting", Checks::waiting),
            new Check("lock.acquire", Checks::lockAcquire),
            new Check("exclusion", Workers::exclusion));

    private static void acquire(Trial t) throws Exception {
        String name = t.name("acquire");
        try (Locker a = t.open(0, LONG_TTL)) {
            Held held = granted(a, name);
            Trial.Info info = t.info(t.key(name));
            require(info.held() && info.fence() > 0, "LOCK.INFO says %s", info);
            held.release();
            t.untilFree(t.key(name), Duration.ofSeconds(1));
        }
    }

    static Held granted(Locker locker, String name) throws Exception {
        Held held = locker.tryLock(name);
        require(held != null, "a free lock was refused");
        return held;
    }

    static void refused(Locker locker, String name, String when) throws Exception {
        require(locker.tryLock(name) == null, "granted %s", when);
    }

    private static void contention(Trial t) throws Exception {
        String name = t.name("contention");
        try (Locker a = t.open(0, LONG_TTL); Locker b = t.open(1, LONG_TTL)) {
            Held held = granted(a, name);
            refused(b, name, "to a second client while the first held it");
            held.release();
            granted(b, name).release();
        }
    }

    private static void extend(Trial t) throws Exception {
        String name = t.name("extend");
        Duration ttl = Duration.ofMillis(1500);
        try (Locker a = t.open(0, ttl); Locker b = t.open(1, ttl)) {
            Held held = granted(a, name);
            long since = System.nanoTime();
            long fence = t.info(t.key(name)).fence();
            Trial.sleepUntil(since + ttl.toNanos() / 2);
            held.extend();
            Trial.sleepUntil(since + ttl.plusMillis(100).toNanos());
            refused(b, name, "to another client although it was extended");
            long after = t.info(t.key(name)).fence();
            require(after == fence, "the renewal changed the fence from %d to %d", fence, after);
            held.release();
        }
    }

    private static void expiry(Trial t) throws Exception {
        afterExpiry(t, t.name("expiry"), old -> {
            try {
                old.extend();
            } catch (Exception refused) {
                return;
            }
            throw new AssertionError("extending the expired lock was allowed");
        });
    }

    private static void stranger(Trial t) throws Exception {
        String name = t.name("stranger");
        if (t.library.renews()) {
            try (Locker a = t.open(0, LONG_TTL); Locker b = t.open(1, LONG_TTL)) {
                Held held = granted(a, name);
                b.releaseAsStranger(name);
                require(t.info(t.key(name)).held(), "the stranger's release freed the lock");
                held.release();
            }
            return;
        }
        afterExpiry(t, name, old -> {
            try {
                old.release();
            } catch (Locker.NotHeld told) {
                // As good as no effect.
            }
            require(t.info(t.key(name)).held(), "the release by the former holder freed the lock");
        });
    }

    private interface WithOld {
        void run(Held old) throws Exception;
    }

    /** Lets a lock of one client run out, takes it with another, and hands on the old one while the other holds. */
    private static void afterExpiry(Trial t, String name, WithOld then) throws Exception {
        Locker a = t.open(0, SHORT_TTL);
        try (Locker b = t.open(1, LONG_TTL)) {
            long asked = System.nanoTime();
            Held old = granted(a, name);
            long fence = t.info(t.key(name)).fence();
            if (t.library.renews()) {
                a.close(); // as if its process had died: nobody renews
            }
            Held next = Locker.poll(b, name, Duration.ofSeconds(6));
            require(next != null, "nobody else got the expired lock");
            long lasted = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - asked);
            require(lasted >= SHORT_TTL.toMillis(), "passed to another after %d ms, before its ttl", lasted);
            long after = t.info(t.key(name)).fence();
            require(after > fence, "fence %d after the expiry, %d before it", after, fence);
            then.run(old);
            next.release();
        } finally {
            a.close();
        }
    }

    private static void waiting(Trial t) throws Exception {
        try (Locker a = t.open(0, LONG_TTL); Locker b = t.open(1, LONG_TTL)) {
            waitThrough(t.name("waiting"), a, b, () -> Thread.sleep(300));
        }
    }

    interface Happening {
        void happen() throws Exception;
    }

    /** a holds, b waits, something happens: b must not come through before a's release, and must after it. */
    static void waitThrough(String name, Locker a, Locker b, Happening happening) throws Exception {
        Held held = granted(a, name);
        CompletableFuture<Void> waiter = inBackground(() -> {
            Held second = Failover.patiently(() -> b.waitFor(name, Duration.ofSeconds(25)));
            require(second != null, "the waiter's time ran out");
            Failover.patiently(second::release);
        });
        happening.happen();
        require(!waiter.isDone(), "the waiter came through while the lock was held");
        Failover.patiently(held::release);
        join(waiter, 12, "the waiter did not get the lock");
    }

    static CompletableFuture<Void> inBackground(Happening work) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                work.happen();
                done.complete(null);
            } catch (Throwable failure) {
                done.completeExceptionally(failure);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return done;
    }

    static void join(CompletableFuture<Void> work, int seconds, String otherwise) throws Exception {
        try {
            work.get(seconds, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            throw new AssertionError(otherwise + " within " + seconds + " s");
        } catch (ExecutionException failed) {
            throw new AssertionError(Main.explain(failed.getCause()), failed.getCause());
        }
    }

    private static void lockAcquire(Trial t) throws Exception {
        try (Locker a = t.open(1, LONG_TTL)) {
            refusesLockAcquire(t, a, t.name("lock.acquire"));
            refusedByLockAcquire(t, a, t.name("lock.acquire:other"));
        }
    }

    private static void refusesLockAcquire(Trial t, Locker a, String name) throws Exception {
        Held held = granted(a, name);
        long fence = t.info(t.key(name)).fence();
        Duration second = Duration.ofSeconds(1);
        require(t.lockAcquire(t.key(name), second, Duration.ZERO) == 0, "LOCK.ACQUIRE was granted while the library held the lock");
        CompletableFuture<Void> release = inBackground(() -> {
            Thread.sleep(200);
            held.release();
        });
        long got = t.lockAcquire(t.key(name), second, Duration.ofSeconds(5));
        require(got > fence, "LOCK.ACQUIRE WAIT gave fence %d after the library's %d", got, fence);
        join(release, 5, "the release did not end");
    }

    private static void refusedByLockAcquire(Trial t, Locker a, String name) throws Exception {
        List<String> keys = t.library.keys().apply(name);
        long[] fences = new long[keys.size()];
        for (int i = 0; i < fences.length; i++) {
            fences[i] = t.lockAcquire(keys.get(i), LONG_TTL, Duration.ZERO);
            require(fences[i] > 0, "LOCK.ACQUIRE of a free name was refused");
        }
        refused(a, name, "while LOCK.ACQUIRE held the name");
        for (int i = 0; i < fences.length; i++) {
            t.lockRelease(keys.get(i), fences[i]);
        }
        granted(a, name).release();
    }
}
