//! Fences never repeat and never step back, whatever Redis loses: power, files, keys, its place as master.
//!
//! Each scenario runs against the module and against the Lua library, on a server of its own. The rule under test is
//! that of both tiers: fence = max(last + 1, microseconds since 1970).

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Duration;

use redfence_tests::client::Client;
use redfence_tests::process::poll_until;
use redfence_tests::redis::Redis;
use redfence_tests::resp::Value;
use redfence_tests::tier1::Tier1;
use redfence_tests::{ask, expect};

const TTL_MS: u64 = 600_000;
const NAMES: [&str; 3] = ["plain", "{tagged}name", "odd}name"];

/// The highest fence seen of each name; every new one must be higher.
#[derive(Default)]
struct Seen(HashMap<String, i64>);

impl Seen {
    /// Takes and gives back every name a few times.
    fn grants(&mut self, client: &mut Client, rounds: usize) {
        for _ in 0..rounds {
            for name in NAMES {
                let fence = client.acquire(name, TTL_MS).fence;
                self.saw(name, fence);
                client.release(name, fence);
            }
        }
    }

    fn saw(&mut self, name: &str, fence: i64) {
        let last = self.0.insert(name.to_owned(), fence).unwrap_or(0);
        assert!(
            fence > last,
            "{name}: fence {fence} after {last}: repeated or stepped back by {}",
            last - fence
        );
    }
}

fn side_key(prefix: &str, name: &str) -> String {
    if name.contains('}') {
        format!("{prefix}:{name}")
    } else {
        format!("{prefix}{{{name}}}")
    }
}

fn ok(reply: &Value) {
    assert_eq!(*reply, Value::Simple(b"OK".to_vec()));
}

fn sigkill_with_rdb_only(tier1: Tier1) {
    let options = tier1.options();
    let mut server = Redis::start(&options);
    let mut seen = Seen::default();
    let mut client = tier1.client(&server);
    seen.grants(&mut client, 5);
    ok(&ask!(client, "SAVE"));
    // Everything from here on is lost with the process, held locks included.
    seen.grants(&mut client, 20);
    let lost = client.acquire(NAMES[0], TTL_MS).fence;
    seen.saw(NAMES[0], lost);
    drop(client);
    server.kill();
    server.restart(&options);
    let mut client = tier1.client(&server);
    seen.grants(&mut client, 5);
    client.release_is_refused(NAMES[0], lost, "not_owner");
}

fn aof_with_its_tail_cut(tier1: Tier1) {
    let options = tier1.options().set("appendonly", "yes").set("appendfsync", "everysec");
    let options = options.set("aof-load-truncated", "yes");
    // From a torn last command to the loss of nearly everything.
    for cut_bytes in [1, 7, 100, 1_000, 5_000] {
        let mut server = Redis::start(&options);
        let mut seen = Seen::default();
        let mut client = tier1.client(&server);
        seen.grants(&mut client, 20);
        drop(client);
        server.kill();
        let file = newest_aof(&server);
        let length = file.metadata().expect("the append-only file").len();
        let file = OpenOptions::new().write(true).open(&file).expect("the append-only file");
        file.set_len(length.saturating_sub(cut_bytes).max(1)).expect("to cut its tail");
        server.restart(&options);
        let mut client = tier1.client(&server);
        // The cut may have swallowed a release: whoever seems to hold a lock has lost it to the power cut.
        for name in NAMES {
            ask!(client, "LOCK.FORCERELEASE", name).integer();
        }
        seen.grants(&mut client, 5);
    }
}

fn newest_aof(server: &Redis) -> PathBuf {
    let folder = server.folder().join("appendonlydir");
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = files
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    found.sort();
    found.pop().expect("an incremental append-only file")
}

fn flushall(tier1: Tier1) {
    let server = Redis::start(&tier1.options());
    let mut seen = Seen::default();
    let mut client = tier1.client(&server);
    for mode in ["SYNC", "ASYNC"] {
        seen.grants(&mut client, 10);
        let held = client.acquire(NAMES[0], TTL_MS).fence;
        seen.saw(NAMES[0], held);
        ok(&ask!(client, "FLUSHALL", mode));
        client.release_is_refused(NAMES[0], held, "not_owner");
        seen.grants(&mut client, 10);
    }
}

fn companion_deleted_or_expired(tier1: Tier1) {
    let server = Redis::start(&tier1.options());
    let mut seen = Seen::default();
    let mut client = tier1.client(&server);
    for name in NAMES {
        let companion = side_key("__fence__", name);
        seen.grants(&mut client, 3);
        assert_eq!(ask!(client, "DEL", &companion), Value::Integer(1), "{companion} is the companion");
        seen.grants(&mut client, 3);
        assert_eq!(ask!(client, "PEXPIRE", &companion, 1), Value::Integer(1));
        assert!(
            poll_until(Duration::from_secs(5), || ask!(client, "EXISTS", &companion) == Value::Integer(0))
        );
        assert_eq!(client.info(name).fence, 0, "the record is forgotten");
        seen.grants(&mut client, 3);
        // While it is held, too: the holder's fence is then unknown, but the next one is still higher.
        let held = client.acquire_as(name, TTL_MS, "holder").fence;
        seen.saw(name, held);
        assert_eq!(ask!(client, "DEL", &companion), Value::Integer(1));
        client.is_refused(name, TTL_MS);
        assert_eq!(ask!(client, "DEL", name), Value::Integer(1));
        seen.grants(&mut client, 3);
    }
}

fn promotion_of_a_lagging_replica(tier1: Tier1) {
    let options = tier1.options();
    let mut master = Redis::start(&options);
    let replica = Redis::start(&options);
    let port = master.address().port().to_string();
    ok(&replica.ask(&["REPLICAOF", "127.0.0.1", &port]));
    let mut seen = Seen::default();
    let mut client = tier1.client(&master);
    seen.grants(&mut client, 5);
    let held = client.acquire_as("held", TTL_MS, "holder").fence;
    let caught_up =
        poll_until(Duration::from_secs(20), || replica.ask(&["GET", "held"]) == Value::bulk("holder"));
    assert!(caught_up, "the replica never caught up\n{}", replica.log());
    // Cut off from its master: what follows never reaches it.
    ok(&replica.ask(&["REPLICAOF", "127.0.0.1", "1"]));
    seen.grants(&mut client, 50);
    drop(client);
    master.kill();
    ok(&replica.ask(&["REPLICAOF", "NO", "ONE"]));
    let mut client = tier1.client(&replica);
    seen.grants(&mut client, 5);
    client.is_refused("held", TTL_MS);
    assert_eq!(client.info("held").fence, held, "what did reach it is as it was");
    client.release("held", held);
}

fn debug_reload(tier1: Tier1) {
    let server = Redis::start(&tier1.options());
    let mut seen = Seen::default();
    let mut client = tier1.client(&server);
    for _ in 0..3 {
        seen.grants(&mut client, 5);
        let held = client.acquire_as("held", TTL_MS, "holder").fence;
        seen.saw("held", held);
        ok(&ask!(client, "DEBUG", "RELOAD"));
        let info = client.info("held");
        assert_eq!((info.fence, info.owner.as_deref()), (held, Some("holder")), "a reload loses nothing");
        client.is_refused("held", TTL_MS);
        seen.grants(&mut client, 5);
        client.release("held", held);
    }
}

/// Runs a scenario against every implementation of Tier 1.
macro_rules! scenarios {
    ($($scenario:ident),* $(,)?) => { $(mod $scenario {
        use super::Tier1;

        #[test]
        fn module() {
            super::$scenario(Tier1::Module);
        }

        #[test]
        fn lua() {
            super::$scenario(Tier1::Functions);
            super::$scenario(Tier1::Script);
        }
    })* };
}

scenarios! {
    sigkill_with_rdb_only,
    aof_with_its_tail_cut,
    flushall,
    companion_deleted_or_expired,
    promotion_of_a_lagging_replica,
    debug_reload,
}

/// Held locks, ended locks and fences pass from the module to Lua and back, over real restarts on the same data.
#[test]
fn switch_from_module_to_lua_and_back() {
    let mut server = Redis::start(&Tier1::Module.options());
    let mut seen = Seen::default();
    let mut held: Option<i64> = None;
    let mut released: Option<i64> = None;
    let turns =
        [Tier1::Module, Tier1::Functions, Tier1::Module, Tier1::Script, Tier1::Functions, Tier1::Module];
    for (turn, tier1) in turns.into_iter().enumerate() {
        if turn > 0 {
            server.restart(&tier1.options());
        }
        let mut client = tier1.client(&server);
        if let Some(fence) = released {
            client.release_is_refused("released", fence, "already_released");
        }
        if let Some(fence) = held {
            let info = client.info("held");
            assert_eq!((info.fence, info.owner.as_deref()), (fence, Some("holder")), "as {tier1:?} reads it");
            client.is_refused("held", TTL_MS);
            assert_eq!(client.acquire_as("held", TTL_MS, "holder").fence, fence, "a retry finds its grant");
            assert_eq!(client.renew("held", fence, TTL_MS), TTL_MS as i64);
            client.release("held", fence);
        }
        seen.grants(&mut client, 5);
        let next = client.acquire_as("held", TTL_MS, "holder").fence;
        seen.saw("held", next);
        held = Some(next);
        let brief = client.acquire("released", TTL_MS).fence;
        seen.saw("released", brief);
        client.release("released", brief);
        released = Some(brief);
        assert_eq!(ask!(client, "FENCE.CHECK", "held", next), Value::Integer(1));
        assert_eq!(ask!(client, "FENCE.GET", "held"), Value::Integer(next));
        ok(&ask!(client, "SAVE"));
        drop(client);
        server.kill();
    }
}

/// Module and Lua on the very same server at the same time: one order of fences, one holder.
#[test]
fn module_and_lua_side_by_side() {
    let server = Redis::start(&Tier1::Module.options());
    let mut seen = Seen::default();
    let mut clients = Tier1::ALL.map(|tier1| tier1.client(&server));
    for round in 0..30 {
        let (taker, other) = (round % 3, (round + 1) % 3);
        let fence = clients[taker].acquire("shared", TTL_MS).fence;
        seen.saw("shared", fence);
        clients[other].is_refused("shared", TTL_MS);
        expect::released(&ask!(clients[other], "LOCK.RELEASE", "shared", fence));
        clients[taker].release_is_refused("shared", fence, "already_released");
    }
}
