package interop;

import static interop.Trial.require;

import interop.Library.Check;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Lettuce with the lock its users write: SET NX PX, and scripts that compare before they touch. */
final class LettuceLock implements Locker {
    static final Library LIBRARY = new Library("lettuce", "Lettuce", "", "io.lettuce/lettuce-core",
            (addresses, ttl) -> new LettuceLock(addresses.get(0), ttl), List::of, false, false, List.of(
                    new Check("evalsha after script load", LettuceLock::scriptLoad),
                    new Check("multi/exec with watch", LettuceLock::transaction),
                    new Check("pub/sub", LettuceLock::pubSub)));

    private static ClientResources threads;

    private final RedisClient client;
    private final StatefulRedisConnection<String, String> connection;
    private final RedisCommands<String, String> commands;
    private final Duration ttl;

    private LettuceLock(String address, Duration ttl) {
        this.client = client(address);
        this.connection = client.connect();
        this.commands = connection.sync();
        this.ttl = ttl;
    }

    /** All clients share their threads, or each would start some of its own. */
    private static synchronized RedisClient client(String address) {
        if (threads == null) {
            threads = ClientResources.create();
        }
        return RedisClient.create(threads, RedisURI.builder().withHost(Wire.host(address)).withPort(Wire.port(address))
                .withTimeout(Duration.ofSeconds(6)).build());
    }

    @Override
    public Held tryLock(String name) {
        String token = UUID.randomUUID().toString();
        if (commands.set(name, token, SetArgs.Builder.nx().px(ttl.toMillis())) == null) {
            return null;
        }
        return new Held() {
            @Override
            public void extend() throws NotHeld {
                JedisLock.one(eval(JedisLock.EXPIRE, token, Trial.ms(ttl)));
            }

            @Override
            public void release() throws NotHeld {
                JedisLock.one(eval(JedisLock.DELETE, token));
            }

            private Object eval(String script, String... values) {
                return commands.eval(script, ScriptOutputType.INTEGER, new String[] {name}, values);
            }
        };
    }

    @Override
    public Held waitFor(String name, Duration limit) throws Exception {
        return Locker.poll(this, name, limit);
    }

    @Override
    public void close() {
        connection.closeAsync();
        client.shutdownAsync(0, 0, TimeUnit.SECONDS);
    }

    private static void scriptLoad(Trial t) throws Exception {
        String name = t.name("evalsha");
        try (LettuceLock lock = new LettuceLock(t.nodes.get(0), Trial.LONG_TTL)) {
            RedisCommands<String, String> commands = lock.commands;
            String sha = commands.scriptLoad(JedisLock.DELETE);
            require(sha.equals(commands.digest(JedisLock.DELETE)), "SCRIPT LOAD gave %s", sha);
            require(commands.scriptExists(sha).equals(List.of(true)), "SCRIPT EXISTS does not know it");
            commands.set(name, "me");
            Long deleted = commands.evalsha(sha, ScriptOutputType.INTEGER, new String[] {name}, "me");
            require(deleted == 1, "EVALSHA gave %d", deleted);
        }
    }

    private static void transaction(Trial t) throws Exception {
        String name = t.name("watch");
        try (LettuceLock mine = new LettuceLock(t.nodes.get(0), Trial.LONG_TTL);
                LettuceLock other = new LettuceLock(t.nodes.get(1), Trial.LONG_TTL)) {
            mine.commands.set(name, "me");
            mine.commands.watch(name);
            other.commands.set(name, "thief");
            TransactionResult refused = deleteInTransaction(mine, name);
            require(refused.wasDiscarded(), "EXEC went through after another client's write");
            require("thief".equals(other.commands.get(name)), "the refused EXEC changed the key");
            mine.commands.watch(name);
            TransactionResult allowed = deleteInTransaction(mine, name);
            require(!allowed.wasDiscarded() && allowed.get(0).equals(1L), "EXEC with nothing changed was refused");
            require(other.commands.exists(name) == 0, "the key is still there after EXEC");
        }
    }

    private static TransactionResult deleteInTransaction(LettuceLock lock, String name) {
        lock.commands.multi();
        lock.commands.del(name);
        return lock.commands.exec();
    }

    private static void pubSub(Trial t) throws Exception {
        String channel = t.name("channel");
        CompletableFuture<String> received = new CompletableFuture<>();
        RedisClient client = client(t.nodes.get(0));
        try (StatefulRedisPubSubConnection<String, String> here = client.connectPubSub();
                LettuceLock there = new LettuceLock(t.nodes.get(1), Trial.LONG_TTL)) {
            here.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(String from, String message) {
                    received.complete(message);
                }
            });
            here.sync().subscribe(channel);
            there.commands.publish(channel, "released");
            String message = received.get(5, TimeUnit.SECONDS);
            require("released".equals(message), "received %s", message);
        } finally {
            client.shutdownAsync(0, 0, TimeUnit.SECONDS);
        }
    }
}
