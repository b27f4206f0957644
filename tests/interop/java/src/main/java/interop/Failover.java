package interop;

import static interop.Trial.LONG_TTL;
import static interop.Trial.require;

import interop.Library.Check;
import interop.Locker.Held;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** The leader is killed while a lock is held, while a client waits for one, and while workers take turns. */
final class Failover {
    private Failover() {
    }

    static final List<Check> COMMON = List.of(
            new Check("leader killed: holding", Failover::holding),
            new Check("leader killed: waiting", Failover::waiting),
            new Check("leader killed: working", Failover::working));

    /** Repeats what fails while there is no leader. That the lock is not held is an answer, not a failure. */
    static <T> T patiently(Callable<T> work) throws Exception {
        long deadline = System.nanoTime() + Duration.ofSeconds(15).toNanos();
        while (true) {
            try {
                return work.call();
            } catch (Locker.NotHeld answer) {
                throw answer;
            } catch (Exception failure) {
                if (System.nanoTime() > deadline) {
                    throw failure;
                }
                Thread.sleep(50);
            }
        }
    }

    static void patiently(Checks.Happening work) throws Exception {
        patiently(() -> {
            work.happen();
            return null;
        });
    }

    /** The two nodes that will live on; questions go to one of them. */
    static List<String> followers(Trial t) throws Exception {
        List<String> followers = t.order("followers");
        require(followers.size() == 2, "there are %d followers", followers.size());
        t.askAt(followers.get(0));
        return followers;
    }

    private static void holding(Trial t) throws Exception {
        String name = t.name("killed-holding");
        List<String> followers = followers(t);
        Duration ttl = Duration.ofSeconds(5);
        try (Locker a = t.openAt(followers.get(0), ttl); Locker b = t.openAt(followers.get(1), ttl)) {
            Held held = Checks.granted(a, name);
            long fence = t.info(t.key(name)).fence();
            t.order("kill-leader");
            require(patiently(() -> b.tryLock(name)) == null, "granted to another client after the kill");
            patiently(held::extend);
            Trial.Info info = t.info(t.key(name));
            require(info.held() && info.fence() == fence, "LOCK.INFO says %s, the fence was %d before the kill", info, fence);
            held.release();
            t.untilFree(t.key(name), Duration.ofSeconds(2));
        } finally {
            t.order("restart-dead");
        }
    }

    private static void waiting(Trial t) throws Exception {
        List<String> followers = followers(t);
        try (Locker a = t.openAt(followers.get(0), LONG_TTL); Locker b = t.openAt(followers.get(1), LONG_TTL)) {
            Checks.waitThrough(t.name("killed-waiting"), a, b, () -> {
                Thread.sleep(200);
                t.order("kill-leader");
                t.order("leader");
            });
        } finally {
            t.order("restart-dead");
        }
    }

    /** The workers use all nodes: those of the dead one see broken connections until its restart. */
    private static void working(Trial t) throws Exception {
        followers(t);
        Workers workers = new Workers(t, t.name("killed-working"), Duration.ofSeconds(4), true);
        AtomicBoolean ended = new AtomicBoolean();
        CompletableFuture<Void> run = workers.start(ended::get);
        try {
            goesOn(workers, "before the kill");
            t.order("kill-leader");
            goesOn(workers, "after the kill");
        } finally {
            t.order("restart-dead");
        }
        try {
            goesOn(workers, "after the restart");
        } finally {
            ended.set(true);
        }
        Checks.join(run, 20, "the workers did not end");
        workers.judge();
    }

    private static void goesOn(Workers workers, String when) throws Exception {
        int target = workers.stayed() + 15;
        Trial.eventually(Duration.ofSeconds(20), "15 more turns " + when, () -> workers.stayed() >= target);
    }
}
