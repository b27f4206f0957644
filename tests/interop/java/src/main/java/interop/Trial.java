package interop;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/** One library on trial: its clients, names of its own, and what the server says about a lock. */
final class Trial {
    static final Duration LONG_TTL = Duration.ofSeconds(20);
    static final Duration SHORT_TTL = Duration.ofMillis(900);

    final Library library;
    final List<String> nodes;
    final List<String> masters;
    private final String control;
    private volatile String asked;

    Trial(Library library, List<String> nodes, List<String> masters, String control) {
        this.library = library;
        this.nodes = nodes;
        this.masters = masters;
        this.control = control;
        this.asked = nodes.get(0);
    }

    /** The n-th client: each at a node of its own in turn, or at all masters. */
    Locker open(int n, Duration ttl) throws Exception {
        return openAt(nodes.get(n % nodes.size()), ttl);
    }

    Locker openAt(String node, Duration ttl) throws Exception {
        return library.opener().open(library.masters() ? masters : List.of(node), ttl);
    }

    /** Questions about locks go to this node from now on. */
    void askAt(String node) {
        asked = node;
    }

    String name(String what) {
        return library.id() + ":" + what;
    }

    String key(String name) {
        return library.key(name);
    }

    record Info(String state, String owner, long fence) {
        boolean held() {
            return state.equals("held");
        }
    }

    Info info(String key) throws Exception {
        Map<String, Object> fields = Wire.pairs(Wire.ask(asked, "LOCK.INFO", key));
        return new Info((String) fields.get("state"), (String) fields.get("owner"), (Long) fields.get("fence"));
    }

    /** The fence, or 0 where the lock is taken. */
    long lockAcquire(String key, Duration ttl, Duration wait) throws Exception {
        Object reply = Wire.ask(asked, "LOCK.ACQUIRE", key, ms(ttl), "WAIT", ms(wait));
        return reply == null ? 0 : (Long) ((List<?>) reply).get(0);
    }

    void lockRelease(String key, long fence) throws Exception {
        Object reply = Wire.ask(asked, "LOCK.RELEASE", key, Long.toString(fence));
        require(((List<?>) reply).get(0).equals(1L), "LOCK.RELEASE gave %s", reply);
    }

    List<String> order(String line) throws Exception {
        return Wire.control(control, line);
    }

    void untilFree(String key, Duration limit) throws Exception {
        eventually(limit, "the lock is free", () -> !info(key).held());
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void eventually(Duration limit, String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + limit.toNanos();
        while (!condition.holds()) {
            require(System.nanoTime() < deadline, "not within %d ms: %s", limit.toMillis(), what);
            Thread.sleep(20);
        }
    }

    static void require(boolean condition, String text, Object... values) {
        if (!condition) {
            throw new AssertionError(String.format(text, values));
        }
    }

    static String ms(Duration time) {
        return Long.toString(time.toMillis());
    }

    static void sleepUntil(long nanoTime) throws InterruptedException {
        long left = (nanoTime - System.nanoTime()) / 1_000_000;
        if (left > 0) {
            Thread.sleep(left);
        }
    }
}
