//! Replicated settings: bounds, the founding, changes of routes in two steps, and snapshots.

use redfence_core::machine::settings::{Founding, Setting, SettingsCommand};
use redfence_core::machine::{Applied, Command, Machine, Query};
use redfence_core::reply::Reply;
use redfence_core::routes::{self, Routing};
use redfence_core::types::{Origin, RequestId, Stamp, Tier};

struct Bench {
    machine: Machine,
    seq: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { machine: Machine::new(), seq: 0 }
    }

    fn founded() -> Bench {
        let mut bench = Bench::new();
        bench.apply(SettingsCommand::Found(Founding::default()));
        bench
    }

    /// Through the bytes of the log, as a node would.
    fn apply(&mut self, command: SettingsCommand<'_>) -> Reply {
        self.seq += 1;
        let mut blob = Vec::new();
        Command::Settings(command.clone()).encode(&mut blob);
        assert_eq!(Command::decode(&blob), Some(Command::Settings(command.clone())));
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let mut applied = Applied::default();
        let stamp = Stamp { term: 1, logical_ms: self.seq, wall_us: 1_000_000 };
        self.machine.apply(stamp, Some(id), Command::Settings(command), &mut applied);
        applied.replies.pop().unwrap().1
    }

    fn set(&mut self, name: &str, value: &str) -> Reply {
        self.apply(SettingsCommand::Set { name: name.as_bytes(), value: value.as_bytes() })
    }

    fn get(&self, name: &str) -> String {
        let name = Setting::parse(name.as_bytes()).unwrap();
        match self.machine.query(Query::Setting(name)) {
            Reply::Bulk(value) => String::from_utf8(value.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

fn is_error(reply: &Reply, code: &str) -> bool {
    matches!(reply, Reply::Error(refusal) if refusal.code() == code)
}

#[test]
fn every_setting_has_a_default_bounds_and_its_own_error() {
    let mut bench = Bench::founded();
    for (name, default, least, most, below, above) in [
        ("max-memory", "1073741824", "1048576", "1099511627776", "1048575", "1099511627777"),
        ("idle-retention-ms", "600000", "1000", "31536000000", "999", "31536000001"),
        ("mark-retention-ms", "2592000000", "1000", "315360000000", "999", "315360000001"),
        ("session-grace-ms", "500", "0", "3600000", "-1", "3600001"),
    ] {
        assert_eq!(bench.get(name), default, "{name}");
        for wrong in [below, above, "", "many", "1.5"] {
            let reply = bench.set(name, wrong);
            assert!(is_error(&reply, "ERR"), "{name} {wrong}: {reply:?}");
            assert_eq!(bench.get(name), default, "{name}: a refused value changed it");
        }
        for right in [least, most] {
            assert_eq!(bench.set(name, right), Reply::OK, "{name} {right}");
            assert_eq!(bench.get(name), right);
        }
    }
    assert_eq!(bench.set("max-memory", "512MB"), Reply::OK);
    assert_eq!(bench.machine.max_memory_bytes(), 512 << 20);
    assert!(is_error(&bench.set("maxmemory", "1gb"), "ERR"), "an unknown name");
    assert!(is_error(&bench.set("default-tier", "fast"), "ERR"));
}

#[test]
fn the_first_founding_counts() {
    let mut bench = Bench::new();
    assert!(is_error(&bench.set("route", "a=correctness"), "UNAVAILABLE"), "nobody has founded them");
    let flags = |text: &str| Founding {
        routing: Routing {
            routes: routes::parse_list(text.as_bytes()).unwrap(),
            default_tier: Tier::Efficiency,
        },
        ..Founding::default()
    };
    bench.apply(SettingsCommand::Found(flags("wallet:*=correctness")));
    bench.apply(SettingsCommand::Found(flags("other:*=correctness")));
    assert_eq!(bench.get("route"), "wallet:*=correctness");
    assert_eq!(bench.get("default-tier"), "efficiency");
    assert_eq!(bench.machine.settings().version, 1);
}

#[test]
fn routes_are_pending_until_they_are_settled() {
    let mut bench = Bench::founded();
    assert_eq!(bench.set("route", "cache:*=efficiency"), Reply::OK);
    let settings = bench.machine.settings().clone();
    assert_eq!(settings.routing, Routing::default(), "not in force yet");
    let pending = settings.pending.expect("pending");
    assert_eq!(pending.routing.route_of(b"cache:1"), Some(Tier::Efficiency));
    assert_eq!(bench.get("route"), "cache:*=efficiency", "the last that was set");
    assert!(is_error(&bench.set("default-tier", "efficiency"), "UNAVAILABLE"), "one change at a time");

    bench.apply(SettingsCommand::Seen { node: 1, version: pending.version - 1 });
    assert!(bench.machine.settings().pending.as_ref().unwrap().seen.is_empty(), "an older version");
    bench.apply(SettingsCommand::Seen { node: 1, version: pending.version });
    assert!(bench.machine.settings().pending.as_ref().unwrap().seen.contains(&1));
    bench.apply(SettingsCommand::Settle { version: pending.version + 1 });
    assert!(bench.machine.settings().pending.is_some(), "another version");
    bench.apply(SettingsCommand::Settle { version: pending.version });
    assert_eq!(bench.machine.settings().pending, None);
    assert_eq!(bench.machine.settings().routing, pending.routing);
    assert_eq!(bench.set("route", ""), Reply::OK, "no routes");
    assert_eq!(bench.get("route"), "");
}

#[test]
fn settings_are_part_of_the_snapshot_and_of_the_hash() {
    let mut bench = Bench::founded();
    let before = bench.machine.state_hash();
    bench.set("mark-retention-ms", "86400000");
    bench.set("route", "cache:*=efficiency wallet:*=correctness");
    let version = bench.machine.settings().version;
    bench.apply(SettingsCommand::Seen { node: 2, version });
    assert_ne!(bench.machine.state_hash(), before);
    bench.machine.snapshot_begin();
    let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| bench.machine.snapshot_step(1_000)).collect();
    let restored = Machine::restore(&pieces).unwrap();
    assert_eq!(restored.settings(), bench.machine.settings());
    assert_eq!(restored.state_hash(), bench.machine.state_hash());
}
