package interop;

import static interop.Trial.require;

import interop.Library.Check;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** ShedLock's provider for Spring Data Redis, over Lettuce and over Jedis. It never waits: its users skip the job. */
final class ShedLock implements Locker {
    static final List<Library> LIBRARIES = List.of(library("shedlock-lettuce", "Spring, Lettuce", ShedLock::lettuce),
            library("shedlock-jedis", "Spring, Jedis", ShedLock::jedis));

    private static Library library(String id, String variant, Function<String, RedisConnectionFactory> connect) {
        return new Library(id, "ShedLock", variant, "net.javacrumbs.shedlock/shedlock-provider-redis-spring",
                (addresses, ttl) -> new ShedLock(connect.apply(addresses.get(0)), ttl, true),
                name -> List.of("job-lock:interop:" + name), false, false, List.of(
                        new Check("lockAtLeastFor", ShedLock::atLeast),
                        new Check("default unlock and extend", t -> unchecked(t, connect))));
    }

    private final RedisConnectionFactory factory;
    private final RedisLockProvider provider;
    private final Duration ttl;

    /** @param safe with owner checks; the library's default deletes and extends without looking */
    private ShedLock(RedisConnectionFactory factory, Duration ttl, boolean safe) {
        this.factory = factory;
        this.provider = new RedisLockProvider.Builder(factory).environment("interop").safeUpdate(safe).build();
        this.ttl = ttl;
    }

    private static RedisConnectionFactory lettuce(String address) {
        LettuceConnectionFactory factory = new LettuceConnectionFactory(configuration(address));
        factory.afterPropertiesSet();
        factory.start();
        return factory;
    }

    private static RedisConnectionFactory jedis(String address) {
        JedisConnectionFactory factory = new JedisConnectionFactory(configuration(address));
        factory.afterPropertiesSet();
        factory.start();
        return factory;
    }

    private static RedisStandaloneConfiguration configuration(String address) {
        return new RedisStandaloneConfiguration(Wire.host(address), Wire.port(address));
    }

    private Optional<SimpleLock> lock(String name, Duration atLeast) {
        return provider.lock(new LockConfiguration(Instant.now(), name, ttl, atLeast));
    }

    @Override
    public Held tryLock(String name) {
        return lock(name, Duration.ZERO).map(lock -> (Held) new ShedHeld(lock, ttl)).orElse(null);
    }

    @Override
    public Held waitFor(String name, Duration limit) throws Exception {
        return Locker.poll(this, name, limit);
    }

    @Override
    public void close() {
        try {
            ((DisposableBean) factory).destroy();
        } catch (Exception ignored) {
            // Nothing depends on it.
        }
    }

    private static final class ShedHeld implements Held {
        private SimpleLock lock;
        private final Duration ttl;

        private ShedHeld(SimpleLock lock, Duration ttl) {
            this.lock = lock;
            this.ttl = ttl;
        }

        @Override
        public void extend() throws NotHeld {
            lock = lock.extend(ttl, Duration.ZERO).orElseThrow(NotHeld::new);
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    /** A job that ends early keeps its lock for the time it asked, so that no other node runs it again at once. */
    private static void atLeast(Trial t) throws Exception {
        String name = t.name("at-least");
        try (ShedLock a = (ShedLock) t.open(0, Trial.LONG_TTL); Locker b = t.open(1, Trial.LONG_TTL)) {
            long asked = System.nanoTime();
            a.lock(name, Duration.ofMillis(1200)).orElseThrow().unlock();
            Checks.refused(b, name, "before lockAtLeastFor was over");
            Held next = Locker.poll(b, name, Duration.ofSeconds(5));
            require(next != null, "still locked long after lockAtLeastFor");
            require(System.nanoTime() - asked >= 1_150_000_000L, "granted before lockAtLeastFor was over");
            next.release();
        }
    }

    /** As shipped: SET XX PX to extend, DEL to unlock. */
    private static void unchecked(Trial t, Function<String, RedisConnectionFactory> connect) throws Exception {
        String name = t.name("default");
        try (ShedLock a = new ShedLock(connect.apply(t.nodes.get(0)), Trial.LONG_TTL, false)) {
            Held held = Checks.granted(a, name);
            Checks.refused(a, name, "twice");
            held.extend();
            held.release();
            t.untilFree(t.key(name), Duration.ofSeconds(1));
        }
    }
}
