package interop;

import static interop.Trial.require;

import interop.Library.Check;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** Redisson's semaphores: a counter, and permits that expire. */
final class RedissonSemaphores {
    private RedissonSemaphores() {
    }

    static final Library LIBRARY = new Library("redisson-semaphore", "Redisson", "semaphores", "org.redisson/redisson", null, List::of,
            true, false, List.of(
                    new Check("semaphore: permits never exceed", RedissonSemaphores::neverExceed),
                    new Check("semaphore: release wakes a waiter", RedissonSemaphores::releaseWakes),
                    new Check("permits: never exceed", RedissonSemaphores::permitsNeverExceed),
                    new Check("permits: a lease ends", RedissonSemaphores::permitExpires),
                    new Check("permits: a stranger's id is refused", RedissonSemaphores::permitStranger),
                    new Check("leader killed: holding", RedissonSemaphores::killedHolding),
                    new Check("leader killed: working", RedissonSemaphores::killedWorking)));

    private static RedissonClient client(Trial t, int n) {
        return RedissonClients.shared(t.nodes.get(n % t.nodes.size()), Trial.LONG_TTL);
    }

    private interface Inside {
        /** Takes a permit, calls inside while it has it, gives it back. */
        void with(int worker, Checks.Happening inside) throws Exception;
    }

    /** Six workers through all nodes, two permits: never three inside, and two at some time. */
    private static void crowd(Inside gate) throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        List<CompletableFuture<Void>> workers = new ArrayList<>();
        for (int n = 0; n < 6; n++) {
            int worker = n;
            workers.add(Checks.inBackground(() -> {
                for (int turn = 0; turn < 4; turn++) {
                    gate.with(worker, () -> {
                        most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                        Thread.sleep(10);
                        inside.decrementAndGet();
                    });
                }
            }));
        }
        for (CompletableFuture<Void> worker : workers) {
            Checks.join(worker, 30, "a worker was not served");
        }
        require(most.get() == 2, "%d inside at once with two permits", most.get());
    }

    private static void neverExceed(Trial t) throws Exception {
        String name = t.name("semaphore");
        require(client(t, 0).getSemaphore(name).trySetPermits(2), "trySetPermits was refused");
        crowd((worker, inside) -> {
            RSemaphore semaphore = client(t, worker).getSemaphore(name);
            semaphore.acquire();
            inside.happen();
            semaphore.release();
        });
        require(client(t, 0).getSemaphore(name).availablePermits() == 2, "not all permits came back");
    }

    private static void releaseWakes(Trial t) throws Exception {
        String name = t.name("semaphore-wakes");
        RSemaphore here = client(t, 0).getSemaphore(name);
        RSemaphore there = client(t, 1).getSemaphore(name);
        require(here.trySetPermits(1) && here.tryAcquire(), "a fresh permit was refused");
        require(!there.tryAcquire(), "granted beyond the permits");
        CompletableFuture<Void> waiter = Checks.inBackground(() -> require(there.tryAcquire(8, TimeUnit.SECONDS), "not served"));
        Thread.sleep(300);
        require(!waiter.isDone(), "the waiter came through without a permit");
        here.release();
        Checks.join(waiter, 5, "the waiter was not woken");
    }

    private static void permitsNeverExceed(Trial t) throws Exception {
        String name = t.name("permits");
        require(client(t, 0).getPermitExpirableSemaphore(name).trySetPermits(2), "trySetPermits was refused");
        crowd((worker, inside) -> {
            RPermitExpirableSemaphore permits = client(t, worker).getPermitExpirableSemaphore(name);
            String id = permits.acquire(20, TimeUnit.SECONDS);
            inside.happen();
            permits.release(id);
        });
        require(client(t, 0).getPermitExpirableSemaphore(name).availablePermits() == 2, "not all permits came back");
    }

    private static void permitExpires(Trial t) throws Exception {
        String name = t.name("permit-expires");
        RPermitExpirableSemaphore here = client(t, 0).getPermitExpirableSemaphore(name);
        RPermitExpirableSemaphore there = client(t, 1).getPermitExpirableSemaphore(name);
        require(here.trySetPermits(1), "trySetPermits was refused");
        long asked = System.nanoTime();
        String id = here.acquire(800, TimeUnit.MILLISECONDS);
        require(there.tryAcquire() == null, "granted beyond the permits");
        String next = there.tryAcquire(6, 20, TimeUnit.SECONDS);
        require(next != null, "the permit did not come back after its lease");
        require(System.nanoTime() - asked >= 790_000_000L, "granted before the lease was over");
        require(!here.tryRelease(id), "the expired permit could be released");
        there.release(next);
    }

    private static void permitStranger(Trial t) throws Exception {
        String name = t.name("permit-stranger");
        RPermitExpirableSemaphore here = client(t, 0).getPermitExpirableSemaphore(name);
        require(here.trySetPermits(1), "trySetPermits was refused");
        String id = here.acquire(20, TimeUnit.SECONDS);
        require(!here.tryRelease("00112233445566778899aabbccddeeff"), "an unknown id was released");
        require(here.availablePermits() == 0, "an unknown id freed a permit");
        require(here.updateLeaseTime(id, 30, TimeUnit.SECONDS), "the lease could not be stretched");
        require(here.tryRelease(id) && !here.tryRelease(id), "a permit must be released once, and only once");
    }

    private static void killedHolding(Trial t) throws Exception {
        String name = t.name("killed");
        List<String> followers = Failover.followers(t);
        RPermitExpirableSemaphore here = RedissonClients.shared(followers.get(0), Trial.LONG_TTL).getPermitExpirableSemaphore(name);
        RPermitExpirableSemaphore there = RedissonClients.shared(followers.get(1), Trial.LONG_TTL).getPermitExpirableSemaphore(name);
        try {
            require(here.trySetPermits(1), "trySetPermits was refused");
            String id = here.acquire(20, TimeUnit.SECONDS);
            t.order("kill-leader");
            require(Failover.patiently(() -> there.tryAcquire()) == null, "granted beyond the permits after the kill");
            require(here.tryRelease(id), "the holder's permit was lost");
            require(there.tryAcquire(5, 20, TimeUnit.SECONDS) != null, "the released permit is not to be had");
        } finally {
            t.order("restart-dead");
        }
    }

    /** Permits of calls that failed half-way come back by their lease, so the crowd always gets through. */
    private static void killedWorking(Trial t) throws Exception {
        String name = t.name("killed-working");
        List<String> followers = Failover.followers(t);
        require(client(t, 0).getPermitExpirableSemaphore(name).trySetPermits(2), "trySetPermits was refused");
        CompletableFuture<Void> killer = Checks.inBackground(() -> {
            Thread.sleep(150);
            t.order("kill-leader");
        });
        try {
            crowd((worker, inside) -> {
                RPermitExpirableSemaphore permits =
                        RedissonClients.shared(followers.get(worker % 2), Trial.LONG_TTL).getPermitExpirableSemaphore(name);
                String id = null;
                while (id == null) {
                    id = Failover.patiently(() -> permits.tryAcquire(2, 3, TimeUnit.SECONDS));
                }
                inside.happen();
                String mine = id;
                Failover.patiently(() -> permits.tryRelease(mine));
            });
            Checks.join(killer, 20, "the leader was not killed");
        } finally {
            t.order("restart-dead");
        }
    }
}
