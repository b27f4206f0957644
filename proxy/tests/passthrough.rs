//! An upstream Redis: everything that is not ours passes through, Tier 1 is served by it, and its end is survived.

mod support;

use support::{await_that, behind, command, fence_of, Client};

#[test]
fn plain_commands_pass_unchanged() {
    let (redis, node) = behind(&[]);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    for line in [
        "SET a 1",
        "GET a",
        "INCR a",
        "LPUSH list x y",
        "LRANGE list 0 -1",
        "GET list",
        "NOSUCH a",
        "HSET h f v",
        "HGETALL h",
        "ZADD z 1.5 m",
        "ZSCORE z m",
        "EVAL return{1,{2,false},'x'} 0",
        "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0",
        "TYPE list",
        "MULTI",
        "SET b 2",
        "INCR b",
        "EXEC",
        "WATCH b",
        "UNWATCH",
        "OBJECT ENCODING a",
        "COMMAND COUNT x",
        "COMMAND INFO get nosuch",
        "COMMAND GETKEYS SET a b",
        "CONFIG GET maxmemory",
        "EXISTS nothing",
        "GET nothing",
        "BLPOP nothing 0.05",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let (through, straight) = (client.ask(&words), direct.ask(&words));
        if line != "INCR a"
            && line != "LPUSH list x y"
            && !line.contains("SET")
            && line != "EXEC"
            && line != "ZADD z 1.5 m"
            && line != "LRANGE list 0 -1"
            && line != "GET a"
        {
            assert_eq!(through, straight, "{line}");
        }
    }
    // In RESP3 too, after a greeting that came when the connection was already in use.
    client.ask(&["HELLO", "3"]);
    assert_eq!(client.ask(&["ZSCORE", "z", "m"]), "1.5");
    assert!(client.ask(&["HGETALL", "h"]).starts_with('{'));
    assert_eq!(client.ask(&["GET", "nothing"]), "nil");
}

#[test]
fn databases_are_kept_apart() {
    let (redis, node) = behind(&[]);
    let mut client = node.connect();
    assert_eq!(client.ask(&["SELECT", "3"]), "OK");
    assert_eq!(client.ask(&["SET", "k", "three"]), "OK");
    assert_eq!(client.ask(&["SELECT", "4"]), "OK");
    assert_eq!(client.ask(&["GET", "k"]), "nil");
    let mut direct = Client::connect(redis.address);
    direct.ask(&["SELECT", "3"]);
    assert_eq!(direct.ask(&["GET", "k"]), "\"three\"");
}

#[test]
fn large_values_and_many_words_stream_through() {
    let (_redis, node) = behind(&[]);
    let mut client = node.connect();
    let value = vec![b'v'; 128 << 20];
    let before = node.process.memory_kib();
    client.send_words(&[b"SET", b"big", &value]);
    assert_eq!(client.receive(), "OK");
    assert_eq!(client.ask(&["STRLEN", "big"]), value.len().to_string());
    let reply = client.ask(&["GET", "big"]);
    assert_eq!(reply.len(), value.len() + 2);
    let grown = node.process.memory_kib().saturating_sub(before);
    // Far from one copy of it: some buffers, and what the allocator keeps of them for a moment.
    assert!(grown < 64 * 1024, "passing 128 MiB twice took {grown} KiB");
    let mut words: Vec<Vec<u8>> = vec![b"MSET".to_vec()];
    for number in 0..10_000 {
        words.push(format!("key:{number}").into_bytes());
        words.push(b"v".to_vec());
    }
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    client.send_words(&words);
    client.send(&["PING"]);
    assert_eq!(client.receive(), "OK");
    assert_eq!(client.receive(), "PONG");
    assert_eq!(client.ask(&["GET", "key:9999"]), "\"v\"");
}

#[test]
fn locks_and_plain_commands_keep_their_order() {
    let (_redis, node) = behind(&["--route", "near:*=efficiency"]);
    let mut client = node.connect();
    let mut bytes = Vec::new();
    for number in 0..100 {
        let name = format!("far:{number}");
        bytes.extend(command(&[b"SET", b"counter", number.to_string().as_bytes()]));
        bytes.extend(command(&[b"LOCK.ACQUIRE", name.as_bytes(), b"60000", b"OWNER", b"o"]));
        bytes.extend(command(&[b"LOCK.ACQUIRE", format!("near:{number}").as_bytes(), b"60000"]));
        bytes.extend(command(&[b"GET", b"counter"]));
        bytes.extend(command(&[b"PING"]));
    }
    client.send_bytes(&bytes);
    for number in 0..100 {
        assert_eq!(client.receive(), "OK");
        fence_of(&client.receive());
        fence_of(&client.receive());
        assert_eq!(client.receive(), format!("\"{number}\""));
        assert_eq!(client.receive(), "PONG");
    }
}

#[test]
fn tier_1_is_the_redis_and_excludes_plain_clients() {
    let (redis, node) = behind(&["--default-tier", "efficiency"]);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    assert_eq!(direct.ask(&["SET", "a", "old", "NX", "PX", "60000"]), "OK");
    assert_eq!(client.ask(&["LOCK.ACQUIRE", "a", "1000"]), "nil");
    let fence = client.acquire(&["b", "60000", "OWNER", "me"]);
    assert_eq!(direct.ask(&["GET", "b"]), "\"me\"");
    assert_eq!(direct.ask(&["SET", "b", "other", "NX", "PX", "1000"]), "nil");
    // Waiting, in Lua, on a connection of its own.
    let mut waiter = node.connect();
    waiter.send(&["LOCK.ACQUIRE", "b", "60000", "WAIT", "60000", "OWNER", "next"]);
    await_that("it stands in the queue", || client.ask(&["LOCK.QUEUE", "b"]).contains("next"));
    assert_eq!(client.ask(&["LOCK.RELEASE", "b", &fence.to_string()]), "(1, \"ok\")");
    let next = fence_of(&waiter.receive());
    assert!(next > fence);
    // A waiter that goes away leaves the queue, and what it is granted is given back.
    let mut gone = node.connect();
    gone.send(&["LOCK.ACQUIRE", "b", "60000", "WAIT", "60000"]);
    await_that("it stands in the queue", || client.ask(&["LOCK.QUEUE", "b"]) != "()");
    drop(gone);
    await_that("it has left", || client.ask(&["LOCK.QUEUE", "b"]) == "()");
    assert_eq!(client.ask(&["LOCK.RELEASE", "b", &next.to_string()]), "(1, \"ok\")");
    assert!(client.ask(&["LOCK.INFO", "b"]).contains("free"));
}

#[test]
fn a_flushed_library_is_loaded_again() {
    let (redis, node) = behind(&["--default-tier", "efficiency"]);
    let mut client = node.connect();
    client.acquire(&["a", "60000"]);
    assert_eq!(Client::connect(redis.address).ask(&["FUNCTION", "FLUSH"]), "OK");
    let mut refused = 0;
    await_that("tier 1 is back", || {
        let reply = client.ask(&["LOCK.ACQUIRE", "b", "60000", "OWNER", "me"]);
        if reply.starts_with("-UNAVAILABLE") {
            refused += 1;
        }
        reply.starts_with('(')
    });
    assert!(refused > 0, "nobody noticed that the library was gone");
}

#[test]
fn events_of_both_tiers_and_messages_of_others_are_heard() {
    let (redis, node) = behind(&["--route", "near:*=efficiency"]);
    let (mut listener, mut client) = (node.connect(), node.connect());
    assert_eq!(listener.ask(&["PSUBSCRIBE", "__lock__:*"]), "(\"psubscribe\", \"__lock__:*\", 1)");
    assert_eq!(listener.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 2)");
    client.acquire(&["near:a", "60000", "OWNER", "me"]);
    let event = listener.receive();
    assert!(event.contains("near:a") && event.contains("EFFICIENCY"), "{event}");
    client.acquire(&["far:a", "60000", "OWNER", "me"]);
    let event = listener.receive();
    assert!(event.contains("far:a") && event.contains("CORRECTNESS"), "{event}");
    assert_eq!(Client::connect(redis.address).ask(&["PUBLISH", "news", "direct"]), "1");
    assert_eq!(listener.receive(), "(\"message\", \"news\", \"direct\")");
    assert_eq!(client.ask(&["PUBLISH", "news", "through"]), "1");
    assert_eq!(listener.receive(), "(\"message\", \"news\", \"through\")");
    assert_eq!(listener.ask(&["UNSUBSCRIBE", "news"]), "(\"unsubscribe\", \"news\", 1)");
    await_that("nobody listens at the Redis", || client.ask(&["PUBLISH", "news", "x"]) == "0");
}

#[test]
fn without_its_redis_tier_2_goes_on_and_tier_1_comes_back() {
    let (mut redis, node) = behind(&["--route", "near:*=efficiency"]);
    let (mut client, mut idle) = (node.connect(), node.connect());
    assert_eq!(client.ask(&["SET", "a", "1"]), "OK");
    assert_eq!(idle.ask(&["GET", "a"]), "\"1\"");
    let mut blocked = node.connect();
    blocked.send(&["BLPOP", "nothing", "0"]);
    let mut watching = node.connect();
    assert_eq!(watching.ask(&["WATCH", "a"]), "OK");
    let mut direct = Client::connect(redis.address);
    await_that("the pop is blocked in the Redis", || {
        direct.ask(&["INFO", "clients"]).contains("blocked_clients:1")
    });
    redis.stop();
    // A command under way there has no known outcome; a transaction cannot go on.
    assert!(blocked.receive().starts_with("-INDETERMINATE "));
    assert_eq!(watching.receive(), "(closed)");
    assert!(client.ask(&["GET", "a"]).starts_with("-UNAVAILABLE "));
    await_that("tier 1 says so", || {
        client.ask(&["LOCK.ACQUIRE", "near:a", "1000"]).starts_with("-UNAVAILABLE ")
    });
    client.acquire(&["far:a", "60000"]);
    assert!(idle.ask(&["LOCK.INFO", "far:a"]).contains("held"));
    assert!(idle.ask(&["SUBSCRIBE", "news"]).starts_with("-UNAVAILABLE "));
    assert_eq!(idle.ask(&["SUBSCRIBE", "__lock__:x"]), "(\"subscribe\", \"__lock__:x\", 1)");
    redis.launch();
    await_that("plain commands pass again", || {
        client.ask(&["PING"]) == "PONG" && client.ask(&["GET", "a"]) == "nil"
    });
    await_that("tier 1 is back", || {
        client.ask(&["LOCK.ACQUIRE", "near:a", "60000", "OWNER", "me"]).starts_with('(')
    });
}

#[test]
fn keys_of_both_tiers_do_not_mix() {
    let (_redis, node) = behind(&["--route", "wallet:*=correctness"]);
    let mut client = node.connect();
    assert!(client.ask(&["MSET", "wallet:1", "a", "x", "b"]).starts_with("-CROSSTIER "));
    assert_eq!(client.ask(&["SET", "wallet:2", "old", "NX", "PX", "60000"]), "OK");
    assert_eq!(client.ask(&["LOCK.ACQUIRE", "wallet:2", "60000"]), "nil", "a plain key is a lock there");
    assert_eq!(client.ask(&["GET", "wallet:2"]), "\"old\"");
    assert_eq!(client.ask(&["BLPOP", "wallet:3", "0.01"]), "nil-array");
    assert_eq!(client.ask(&["GET", "x"]), "nil");
    assert!(client.ask(&["LOCK.ACQUIRE", "wallet:1", "1000", "TIER", "EFFICIENCY"]).starts_with("-TIER "));
    client.acquire(&["wallet:1", "60000"]);
}

/// A user's rights are decided by the keys: where those stand in front, the rest streams through, as for a user who may do everything.
#[test]
fn large_values_of_a_limited_user_stream_through() {
    let (_redis, node) = behind(&[]);
    let mut admin = node.connect();
    let rules = "ACL SETUSER lim on >pw ~own:* +@all -@admin -@dangerous";
    await_that("the node serves", || admin.ask(&rules.split(' ').collect::<Vec<_>>()) == "OK");
    let mut client = node.connect();
    assert_eq!(client.ask(&["AUTH", "lim", "pw"]), "OK");
    let value = vec![b'v'; 40 * 1024 * 1024];
    for words in [vec![b"SET".as_slice(), b"own:1", &value], vec![b"HSET", b"own:2", b"field", &value]] {
        client.send_words(&words);
        let reply = client.receive();
        assert!(reply == "OK" || reply == "1", "{reply}");
    }
    client.send_words(&[b"SET", b"other", &value]);
    assert!(client.receive().starts_with("-NOPERM"));
    assert_eq!(client.ask(&["STRLEN", "own:1"]), value.len().to_string());
}

/// Keys behind the 1,024th word, or behind a large one, decide too where a command goes.
#[test]
fn commands_of_many_words_pass_where_all_their_keys_do() {
    let (_redis, node) = behind(&["--route", "wallet:*=correctness"]);
    let mut client = node.connect();
    let value = "v".repeat(100_000);
    let pairs = |last: &str| -> Vec<String> {
        let mut words = vec!["MSET".to_owned(), "big".to_owned(), value.clone()];
        (0..4_000).for_each(|n| words.extend([format!("k{n}"), n.to_string()]));
        words.extend([last.to_owned(), "end".to_owned()]);
        words
    };
    let mut ask = |words: &[String]| client.ask(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(ask(&pairs("last")), "OK");
    assert_eq!(ask(&all(&["GET", "last"])), "\"end\"");
    assert_eq!(ask(&all(&["STRLEN", "big"])), "100000");
    assert_eq!(ask(&all(&["GET", "k3999"])), "\"3999\"");
    let mut keys = vec!["DEL".to_owned(), "big".to_owned(), "last".to_owned()];
    keys.extend((0..4_000).map(|n| format!("k{n}")));
    assert_eq!(ask(&keys), "4002");
    // One key of the other tier at the very end: nothing is done.
    let crossed = ask(&pairs("wallet:1"));
    assert!(crossed.starts_with("-CROSSTIER "), "{crossed}");
    assert_eq!(ask(&all(&["EXISTS", "k0"])), "0");
    let strong: Vec<String> =
        ["DEL".to_owned()].into_iter().chain((0..2_000).map(|n| format!("wallet:{n}"))).collect();
    let refused = ask(&strong);
    assert!(refused.starts_with("-ERR a command may have 1024 words"), "{refused}");
    // Other commands pipelined around it keep their order.
    client.send(&["INCR", "n"]);
    client.send(&pairs("last").iter().map(String::as_str).collect::<Vec<_>>());
    client.send(&["INCR", "n"]);
    assert_eq!([client.receive(), client.receive(), client.receive()], ["1", "OK", "2"]);
    // There is an end to what is held.
    let huge = "v".repeat(17 << 20);
    let refused = client.ask(&["MSET", "a", &huge, "b", &huge]);
    assert!(refused.starts_with("-ERR a command with many keys may have 33554432 bytes"), "{refused}");
    assert_eq!(client.ask(&["EXISTS", "a"]), "0");
}

#[test]
fn info_and_hello_are_those_of_the_redis_behind() {
    let (mut redis, node) = behind(&[]);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    let line = |text: &str, name: &str| {
        let lines = text.split("\\r\\n").map(|line| line.trim_matches('"').to_owned());
        lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned)).next()
    };
    client.ask(&["SET", "a", "1", "PX", "60000"]);
    let (ours, theirs) = (client.ask(&["INFO"]), direct.ask(&["INFO"]));
    for name in ["redis_version", "run_id", "db0", "maxmemory_policy", "aof_enabled", "role"] {
        let (ours, theirs) = (line(&ours, name), line(&theirs, name));
        // What is left of the key's time is in it.
        let cut = |text: Option<String>| text.map(|text| text.split(",avg_ttl").next().unwrap().to_owned());
        assert!(theirs.is_some() && cut(ours.clone()) == cut(theirs.clone()), "{name}: {ours:?}, {theirs:?}");
    }
    assert!(ours.contains("# Redfence") && line(&ours, "is_leader").as_deref() == Some("1"), "{ours}");
    let section = client.ask(&["INFO", "redfence"]);
    assert!(section.starts_with("\"# Redfence") && !section.contains("run_id"), "{section}");
    let keyspace = client.ask(&["INFO", "keyspace"]);
    assert!(keyspace.starts_with("\"# Keyspace") && !keyspace.contains("# Redfence"), "{keyspace}");
    let both = client.ask(&["INFO", "keyspace", "redfence"]);
    assert!(both.contains("# Keyspace") && both.contains("# Redfence"), "{both}");
    // In order with what is before and behind it.
    let replies = client.pipeline(&["SET b 1", "INFO keyspace", "GET b"]);
    assert!(replies[1].contains("keys=2") && replies[2] == "\"1\"", "{replies:?}");
    let version = line(&theirs, "redis_version").unwrap();
    let hello = client.ask(&["HELLO", "3"]);
    assert!(hello.contains(&format!("\"version\", \"{version}\"")), "{hello}");
    redis.stop();
    let alone = client.ask(&["INFO"]);
    assert!(alone.contains("redfence_version") && alone.contains("# Redfence"), "{alone}");
}

#[test]
fn every_listener_of_a_proxy_is_counted() {
    let (redis, node) = behind(&[]);
    let mut listeners: Vec<Client> = (0..3).map(|_| node.connect()).collect();
    for listener in &mut listeners {
        assert_eq!(listener.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 1)");
    }
    assert_eq!(listeners[0].ask(&["PSUBSCRIBE", "n*"]), "(\"psubscribe\", \"n*\", 2)");
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    assert_eq!(direct.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 1)");
    assert_eq!(client.ask(&["PUBSUB", "NUMSUB", "news", "other"]), "(\"news\", 4, \"other\", 0)");
    assert_eq!(client.ask(&["PUBLISH", "news", "hi"]), "5");
    assert_eq!(client.ask(&["PUBLISH", "other", "hi"]), "0");
    assert_eq!(client.pipeline(&["SET a 1", "PUBLISH news hi", "GET a"]), ["OK", "5", "\"1\""]);
    for listener in &mut listeners {
        assert_eq!(listener.receive(), "(\"message\", \"news\", \"hi\")");
    }
}

#[test]
fn a_client_hears_of_changed_keys_in_both_stores() {
    let (mut redis, node) = behind(&["--route", "wallet:*=correctness"]);
    let (mut other, mut direct) = (node.connect(), Client::connect(redis.address));
    let tracking = |options: &[&str]| {
        let mut client = node.connect();
        assert!(client.ask(&["HELLO", "3"]).starts_with('{'));
        let words: Vec<&str> = ["CLIENT", "TRACKING", "ON"].iter().chain(options).copied().collect();
        assert_eq!(client.ask(&words), "OK");
        client
    };
    let mut keeper = tracking(&[]);
    for _ in 0..40 {
        // It never shares a connection with others: the Redis would not know whose read it was.
        assert_eq!(keeper.ask(&["GET", "plain"]), "nil");
    }
    assert_eq!(keeper.ask(&["GET", "wallet:1"]), "nil");
    assert_eq!(direct.ask(&["SET", "plain", "1"]), "OK");
    assert_eq!(keeper.receive(), ">(\"invalidate\", (\"plain\"))");
    assert_eq!(other.ask(&["SET", "wallet:1", "1"]), "OK");
    assert_eq!(keeper.receive(), ">(\"invalidate\", (\"wallet:1\"))");
    // Also while it waits for a lock.
    assert_eq!(keeper.ask(&["GET", "plain"]), "\"1\"");
    other.acquire(&["wallet:lock", "60000"]);
    keeper.send(&["LOCK.ACQUIRE", "wallet:lock", "1000", "WAIT", "60000"]);
    await_that("it waits", || other.ask(&["LOCK.INFO", "wallet:lock"]).contains("\"waiters\", 1"));
    assert_eq!(direct.ask(&["SET", "plain", "2"]), "OK");
    assert_eq!(keeper.receive(), ">(\"invalidate\", (\"plain\"))");

    let mut chooser = tracking(&["OPTIN"]);
    assert_eq!(chooser.ask(&["GET", "plain"]), "\"2\"");
    assert_eq!(direct.ask(&["SET", "plain", "3"]), "OK");
    assert_eq!(chooser.ask(&["CLIENT", "CACHING", "YES"]), "OK");
    assert_eq!(chooser.ask(&["GET", "plain"]), "\"3\"");
    assert_eq!(direct.ask(&["SET", "plain", "4"]), "OK");
    assert_eq!(chooser.receive(), ">(\"invalidate\", (\"plain\"))");

    let refused = other.ask(&["CLIENT", "TRACKING", "ON", "REDIRECT", "1"]);
    assert!(refused.starts_with("-ERR "), "{refused}");
    other.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~app:*", "&*", "+@all"]);
    let mut app = node.connect();
    assert_eq!(app.ask(&["AUTH", "app", "pw"]), "OK");
    assert!(app.ask(&["CLIENT", "TRACKING", "ON", "BCAST"]).starts_with("-NOPERM "));
    assert_eq!(app.ask(&["CLIENT", "TRACKING", "ON"]), "OK");

    // What it keeps may be stale from now on.
    redis.stop();
    assert_eq!(chooser.receive(), "(closed)");
}

#[test]
fn monitor_and_pause_reach_the_redis_behind() {
    let (redis, node) = behind(&[]);
    let (mut watcher, mut client) = (node.connect(), node.connect());
    assert_eq!(watcher.ask(&["MONITOR"]), "OK");
    assert_eq!(client.ask(&["SET", "seen", "1"]), "OK");
    let mut direct = Client::connect(redis.address);
    direct.ask(&["SET", "seen-too", "1"]);
    for expected in ["\"SET\" \"seen\" \"1\"", "\"SET\" \"seen-too\" \"1\""] {
        // The proxy asks that Redis how it is now and then.
        await_that("it is shown", || watcher.receive().contains(expected));
    }
    assert!(client.ask(&["CLIENT", "LIST"]).contains(" flags=O "));
    watcher.send(&["GET", "seen"]);
    await_that("other commands are refused", || watcher.receive().starts_with("-ERR Can't execute 'get'"));
    watcher.send(&["RESET"]);
    await_that("it is as new", || watcher.receive() == "RESET");
    assert_eq!(watcher.ask(&["GET", "seen"]), "\"1\"");

    assert_eq!(client.ask(&["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    direct.send(&["SET", "seen", "2"]);
    assert_eq!(client.ask(&["GET", "seen"]), "\"1\"");
    assert_eq!(client.ask(&["CLIENT", "UNPAUSE"]), "OK");
    assert_eq!(direct.receive(), "OK");

    client.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-@dangerous"]);
    assert_eq!(watcher.ask(&["AUTH", "app", "pw"]), "OK");
    for line in [&["MONITOR"][..], &["CLIENT", "PAUSE", "1"], &["CLIENT", "UNPAUSE"]] {
        assert!(watcher.ask(line).starts_with("-NOPERM "), "{line:?}");
    }
}

#[test]
fn shard_channels_are_those_of_the_redis_behind() {
    let (redis, node) = behind(&[]);
    let (mut listener, mut direct) = (node.connect(), Client::connect(redis.address));
    let mut client = node.connect();
    assert_eq!(listener.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 1)");
    await_that("the version is known", || client.ask(&["INFO", "redfence"]).contains("tier1:lua_functions"));
    assert_eq!(listener.ask(&["SSUBSCRIBE", "news"]), "(\"ssubscribe\", \"news\", 1)");
    assert_eq!(client.ask(&["SPUBLISH", "news", "shard"]), "1");
    assert_eq!(listener.receive(), "(\"smessage\", \"news\", \"shard\")");
    assert_eq!(direct.ask(&["PUBLISH", "news", "plain"]), "1");
    assert_eq!(listener.receive(), "(\"message\", \"news\", \"plain\")");
    assert!(client.ask(&["CLIENT", "LIST"]).contains(" sub=1 psub=0 ssub=1 "));
    assert_eq!(listener.ask(&["SUNSUBSCRIBE"]), "(\"sunsubscribe\", \"news\", 0)");
    await_that("nobody listens at the Redis", || client.ask(&["SPUBLISH", "news", "x"]) == "0");
    client.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&app:*", "+@all"]);
    assert_eq!(client.ask(&["AUTH", "app", "pw"]), "OK");
    assert!(client.ask(&["SSUBSCRIBE", "news"]).starts_with("-NOPERM "));
    assert_eq!(client.ask(&["SSUBSCRIBE", "app:1"]), "(\"ssubscribe\", \"app:1\", 1)");
}

#[test]
fn commands_of_ours_are_listed_behind_those_of_redis() {
    let (redis, node) = behind(&[]);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    let number = |text: String| text.parse::<usize>().unwrap();
    for hello in ["2", "3"] {
        for client in [&mut client, &mut direct] {
            client.ask(&["HELLO", hello]);
        }
        let ours = client.ask(&["COMMAND", "LIST", "FILTERBY", "MODULE", "redfence"]);
        let ours: Vec<&str> = ours.trim_matches(['(', ')']).split(", ").collect();
        assert!(ours.contains(&"\"lock.acquire\"") && ours.contains(&"\"fence.call\""), "{ours:?}");
        assert_eq!(
            number(client.ask(&["COMMAND", "COUNT"])),
            number(direct.ask(&["COMMAND", "COUNT"])) + ours.len()
        );
        // Theirs first, as they are.
        for words in [&["COMMAND"][..], &["COMMAND", "INFO"], &["COMMAND", "LIST"], &["COMMAND", "DOCS"]] {
            let (through, straight) = (client.ask(words), direct.ask(words));
            let straight = straight.trim_end_matches([')', '}']);
            assert!(through.starts_with(straight), "{words:?}: {through:.80}");
            for name in &ours {
                assert!(through[straight.len()..].contains(name), "{words:?} has no {name}");
            }
        }
        assert!(client.ask(&["COMMAND", "LIST", "FILTERBY", "PATTERN", "lock.a*"]).contains("lock.acquire"));
        assert!(client.ask(&["COMMAND", "LIST", "FILTERBY", "PATTERN", "get"]).contains("\"get\""));
        assert!(client.ask(&["COMMAND", "LIST", "FILTERBY", "NONSENSE", "x"]).starts_with("-ERR"));
        assert!(client.ask(&["COMMAND", "INFO", "lock.acquire"]).contains("lock.acquire"));
        assert_eq!(client.ask(&["PING"]), "PONG");
    }
}

#[test]
fn the_greeting_tells_the_role_of_the_redis() {
    let (redis, node) = behind(&[]);
    let mut client = node.connect();
    assert!(client.ask(&["HELLO", "3"]).contains("\"role\", \"master\""), "{}", client.ask(&["HELLO"]));
    let nobody = support::free_address().port().to_string();
    assert_eq!(Client::connect(redis.address).ask(&["REPLICAOF", "127.0.0.1", &nobody]), "OK");
    await_that("it is seen", || client.ask(&["HELLO", "3"]).contains("\"role\", \"replica\""));
}

#[test]
fn connections_to_the_redis_are_limited() {
    let (redis, node) = behind(&["--max-redis-connections", "2"]);
    let mut clients: Vec<Client> = (0..3).map(|_| node.connect()).collect();
    for client in &mut clients[..2] {
        assert_eq!(client.ask(&["SET", "k", "v"]), "OK");
    }
    for _ in 0..2 {
        let refused = clients[2].ask(&["GET", "k"]);
        assert!(refused.starts_with("-UNAVAILABLE upstream Redis at "), "{refused}");
        assert!(
            refused.contains("as many connections to it as it may, 2 (--max-redis-connections)"),
            "{refused}"
        );
        assert!(refused.ends_with("nothing was done; retry"), "{refused}");
    }
    assert_eq!(
        clients[2].ask(&["LOCK.ACQUIRE", "far", "1000"]).chars().next(),
        Some('('),
        "Tier 2 needs none"
    );
    assert_eq!(clients[0].ask(&["GET", "k"]), "\"v\"", "others are not disturbed");
    drop(clients.remove(0));
    await_that("there is a place again", || clients[1].ask(&["GET", "k"]) == "\"v\"");
    drop(redis);
}
