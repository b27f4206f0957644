package interop;

import static interop.Trial.require;

import interop.Locker.Held;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;

/** Workers that take one lock in turn through all nodes, and the judge who looks for two holders at once. */
final class Workers {
    private static final int COUNT = 4;

    /**
     * A time during which one worker surely held the lock: from the reply of its acquire until it began to
     * release, but no longer than its ttl after it first asked. The fence is 0 where it was not read in that time.
     */
    private record Stay(long from, long to, long fence) {
    }

    private final Trial trial;
    private final String name;
    private final Duration ttl;
    private final boolean tolerant;
    private final List<Stay> stays = new ArrayList<>();
    /** Added to by reading, pausing and writing, so that two holders lose an update. */
    private final AtomicLong counter = new AtomicLong();

    /** @param tolerant errors do not end a worker: the leader is about to be killed */
    Workers(Trial trial, String name, Duration ttl, boolean tolerant) {
        this.trial = trial;
        this.name = name;
        this.ttl = ttl;
        this.tolerant = tolerant;
    }

    static void exclusion(Trial t) throws Exception {
        Workers workers = new Workers(t, t.name("exclusion"), Trial.LONG_TTL, false);
        Checks.join(workers.start(() -> workers.stayed() >= 30), 30, "30 turns were not done");
        long lost = workers.stayed() - workers.counter.get();
        require(lost == 0, "%d of %d updates were lost", lost, workers.stayed());
        workers.judge();
    }

    CompletableFuture<Void> start(BooleanSupplier done) throws Exception {
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int n = 0; n < COUNT; n++) {
            Locker locker = trial.open(n, ttl);
            all.add(Checks.inBackground(() -> {
                try (locker) {
                    while (!done.getAsBoolean()) {
                        work(locker);
                    }
                }
            }));
        }
        return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new));
    }

    private void work(Locker locker) throws Exception {
        try {
            once(locker);
        } catch (Exception failure) {
            if (!tolerant) {
                throw failure;
            }
            Thread.sleep(50);
        }
    }

    private void once(Locker locker) throws Exception {
        long asked = System.nanoTime();
        Held held = locker.waitFor(name, Duration.ofSeconds(10));
        if (held == null) {
            require(tolerant, "not served within 10 s");
            return;
        }
        long from = System.nanoTime();
        long seen = counter.get();
        long fence = fence();
        Thread.sleep(2);
        counter.set(seen + 1);
        long to = System.nanoTime();
        long end = asked + ttl.toNanos();
        if (to > end) {
            to = end;
            fence = 0;
        }
        if (to > from) {
            synchronized (stays) {
                stays.add(new Stay(from, to, fence));
            }
        }
        held.release();
    }

    private long fence() throws Exception {
        try {
            return trial.info(trial.key(name)).fence();
        } catch (Exception failure) {
            if (!tolerant) {
                throw failure;
            }
            return 0;
        }
    }

    int stayed() {
        synchronized (stays) {
            return stays.size();
        }
    }

    /** No two stays overlap, and the fences rise from each to the next. */
    void judge() {
        stays.sort(Comparator.comparingLong(Stay::from));
        long heldUntil = Long.MIN_VALUE;
        long fence = 0;
        for (Stay stay : stays) {
            require(stay.from >= heldUntil, "two holders at once for %d us (fences %d and %d)", (heldUntil - stay.from) / 1000,
                    fence, stay.fence);
            heldUntil = stay.to;
            if (stay.fence != 0) {
                require(stay.fence > fence, "fence %d came after %d", stay.fence, fence);
                fence = stay.fence;
            }
        }
        require(fence != 0, "no fence could be read in %d stays", stays.size());
    }
}
