package interop;

import static interop.Trial.require;

import interop.Library.Check;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.params.SetParams;

/** Jedis with the lock its users write: SET NX PX, and scripts that compare before they touch. */
final class JedisLock implements Locker {
    static final String DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    static final String EXPIRE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

    static final Library LIBRARY = new Library("jedis", "Jedis", "", "redis.clients/jedis",
            (addresses, ttl) -> new JedisLock(addresses.get(0), ttl), List::of, false, false, List.of(
                    new Check("pipeline", JedisLock::pipeline),
                    new Check("multi/exec with watch", JedisLock::transaction),
                    new Check("pub/sub", JedisLock::pubSub)));

    private final RedisClient client;
    private final Duration ttl;

    private JedisLock(String address, Duration ttl) {
        this.client = client(address);
        this.ttl = ttl;
    }

    private static RedisClient client(String address) {
        return RedisClient.builder().hostAndPort(hostAndPort(address))
                .clientConfig(DefaultJedisClientConfig.builder().socketTimeoutMillis(6000).build()).build();
    }

    private static HostAndPort hostAndPort(String address) {
        return new HostAndPort(Wire.host(address), Wire.port(address));
    }

    @Override
    public Held tryLock(String name) {
        String token = UUID.randomUUID().toString();
        if (client.set(name, token, SetParams.setParams().nx().px(ttl.toMillis())) == null) {
            return null;
        }
        return new Held() {
            @Override
            public void extend() throws NotHeld {
                one(client.eval(EXPIRE, List.of(name), List.of(token, Trial.ms(ttl))));
            }

            @Override
            public void release() throws NotHeld {
                one(client.eval(DELETE, List.of(name), List.of(token)));
            }
        };
    }

    static void one(Object reply) throws NotHeld {
        if (!Long.valueOf(1).equals(reply)) {
            throw new NotHeld();
        }
    }

    @Override
    public Held waitFor(String name, Duration limit) throws Exception {
        return Locker.poll(this, name, limit);
    }

    @Override
    public void close() {
        client.close();
    }

    private static void pipeline(Trial t) {
        String name = t.name("pipeline");
        try (RedisClient client = client(t.nodes.get(0)); Pipeline pipe = client.pipelined()) {
            Response<String> set = pipe.set(name, "me", SetParams.setParams().nx().px(10_000));
            Response<String> get = pipe.get(name);
            Response<Long> del = pipe.del(name);
            Response<Boolean> exists = pipe.exists(name);
            pipe.sync();
            require("OK".equals(set.get()) && "me".equals(get.get()) && del.get() == 1 && !exists.get(), "replies %s %s %s %s", set.get(),
                    get.get(), del.get(), exists.get());
        }
    }

    /** Releases by WATCH, GET, MULTI, DEL, EXEC; refused when another client wrote in between. */
    private static void transaction(Trial t) {
        String name = t.name("watch");
        try (Jedis mine = new Jedis(hostAndPort(t.nodes.get(0))); Jedis other = new Jedis(hostAndPort(t.nodes.get(1)))) {
            mine.set(name, "me", SetParams.setParams().px(10_000));
            mine.watch(name);
            other.set(name, "thief", SetParams.setParams().px(10_000));
            Transaction refused = mine.multi();
            refused.del(name);
            List<Object> replies = refused.exec();
            require(replies == null, "EXEC after another client's write gave %s", replies);
            require("thief".equals(other.get(name)), "the refused EXEC changed the key");
            mine.watch(name);
            Transaction allowed = mine.multi();
            allowed.del(name);
            replies = allowed.exec();
            require(replies != null && replies.equals(List.of(1L)), "EXEC with nothing changed gave %s", replies);
            require(!other.exists(name), "the key is still there after EXEC");
        }
    }

    /** Subscribes at one node, publishes at another. */
    private static void pubSub(Trial t) throws Exception {
        String channel = t.name("channel");
        CompletableFuture<Void> subscribed = new CompletableFuture<>();
        CompletableFuture<String> received = new CompletableFuture<>();
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onSubscribe(String to, int count) {
                subscribed.complete(null);
            }

            @Override
            public void onMessage(String from, String message) {
                received.complete(message);
                unsubscribe();
            }
        };
        try (Jedis here = new Jedis(hostAndPort(t.nodes.get(0))); Jedis there = new Jedis(hostAndPort(t.nodes.get(1)))) {
            CompletableFuture<Void> listening = Checks.inBackground(() -> here.subscribe(listener, channel));
            subscribed.get(5, TimeUnit.SECONDS);
            there.publish(channel, "released");
            String message = received.get(5, TimeUnit.SECONDS);
            require("released".equals(message), "received %s", message);
            Checks.join(listening, 5, "unsubscribe did not end the subscription");
        }
    }
}
