//! The grammar at its edges: every limit of the contract hit, one more, and nonsense in its place. Each gives its clear
//! error; the texts are part of the contract with users, so they are spelled out here.

use redfence_core::grammar::convert::ConvertTo;
use redfence_core::grammar::session::SessionCommand;
use redfence_core::grammar::{self, table, Request};
use redfence_core::types::{Fence, LockKind, Tier};

/// Words apart by blanks; `_` is the empty word, `x*512` 512 times x.
fn argv(line: &str) -> Vec<Vec<u8>> {
    line.split_whitespace()
        .map(|word| match word.split_once('*') {
            _ if word == "_" => Vec::new(),
            Some((unit, times)) if times.parse::<usize>().is_ok() => {
                unit.repeat(times.parse().unwrap()).into_bytes()
            }
            Some(_) | None => word.as_bytes().to_vec(),
        })
        .collect()
}

#[track_caller]
fn refused(line: &str, expected: &str) {
    let argv = argv(line);
    let parsed = grammar::parse(&argv).expect("a command of ours");
    match parsed {
        Ok(request) => panic!("{line}: taken as {request:?}"),
        Err(refusal) => assert_eq!(refusal.0, expected, "{line}"),
    }
}

#[track_caller]
fn taken(line: &str) {
    let argv = argv(line);
    let parsed = grammar::parse(&argv).expect("a command of ours");
    if let Err(refusal) = parsed {
        panic!("{line}: {}", refusal.0);
    }
}

const TTL: &str = "ERR ttl must be an integer from 1 to 31536000000 milliseconds";
const TTL_ZERO: &str = "ERR ttl 0 (as long as the session lives) needs SESSION; otherwise ttl must be an integer from 1 to 31536000000 milliseconds";
const RESOURCE: &str = "ERR resource name must be 1 to 512 bytes";
const OWNER: &str = "ERR owner must be 1 to 256 bytes";
const WAIT: &str = "ERR WAIT must be an integer from 0 to 3600000 milliseconds";
const FENCE: &str = "ERR fence must be an integer from 1 to 9007199254740991";
const COUNT: &str = "ERR count must be an integer from 1 to 256";
const MISMATCH: &str = "ERR count does not match the number of resources given";

/// What is no integer of ours, wherever one is wanted.
const NO_INTEGERS: [&str; 12] = [
    "_",
    "abc",
    "-1",
    "+1",
    "1.5",
    "1e3",
    "0x10",
    "01",
    "00",
    "1_000",
    "18446744073709551616",
    "99999999999999999999999",
];

#[test]
fn resource_names() {
    for command in [
        "LOCK.ACQUIRE {} 1000",
        "LOCK.RELEASE {} 7",
        "LOCK.RENEW {} 7 1000",
        "LOCK.INFO {}",
        "LOCK.QUEUE {}",
        "LOCK.FORCERELEASE {}",
        "LOCK.MACQUIRE 1 {} 1000",
        "LOCK.MRELEASE 1 {} 7",
        "FENCE.CHECK {} 7",
        "FENCE.GET {}",
        "FENCE.CALL {} 7 GET x",
    ] {
        taken(&command.replace("{}", "n"));
        taken(&command.replace("{}", "n*512"));
        refused(&command.replace("{}", "n*513"), RESOURCE);
        refused(&command.replace("{}", "_"), RESOURCE);
    }
}

#[test]
fn ttl_range() {
    taken("LOCK.ACQUIRE a 1");
    taken("LOCK.ACQUIRE a 31536000000");
    taken("LOCK.ACQUIRE a 0 SESSION 0000000000000001");
    refused("LOCK.ACQUIRE a 0", TTL_ZERO);
    refused("LOCK.MACQUIRE 1 a 0", TTL_ZERO);
    for bad in NO_INTEGERS.into_iter().chain(["31536000001", "18446744073709551615"]) {
        refused(&format!("LOCK.ACQUIRE a {bad}"), TTL);
        refused(&format!("LOCK.RENEW a 7 {bad}"), TTL);
        refused(&format!("LOCK.MACQUIRE 2 a b {bad}"), TTL);
        refused(&format!("LOCK.SESSION OPEN {bad}"), TTL);
    }
    refused("LOCK.RENEW a 7 0", TTL);
    refused("LOCK.SESSION OPEN 0", TTL);
}

#[test]
fn wait_range() {
    taken("LOCK.ACQUIRE a 1 WAIT 0");
    taken("LOCK.ACQUIRE a 1 WAIT 3600000");
    for bad in NO_INTEGERS.into_iter().chain(["3600001"]) {
        refused(&format!("LOCK.ACQUIRE a 1 WAIT {bad}"), WAIT);
        refused(&format!("LOCK.MACQUIRE 1 a 1 WAIT {bad}"), WAIT);
    }
}

#[test]
fn owner_length() {
    taken("LOCK.ACQUIRE a 1 OWNER o");
    taken("LOCK.ACQUIRE a 1 OWNER o*256");
    refused("LOCK.ACQUIRE a 1 OWNER o*257", OWNER);
    refused("LOCK.ACQUIRE a 1 OWNER _", OWNER);
    refused("LOCK.MACQUIRE 1 a 1 OWNER _", OWNER);
}

#[test]
fn fence_range() {
    taken("LOCK.RELEASE a 1");
    taken("LOCK.RELEASE a 9007199254740991");
    for bad in NO_INTEGERS.into_iter().chain(["0", "9007199254740992"]) {
        refused(&format!("LOCK.RELEASE a {bad}"), FENCE);
        refused(&format!("LOCK.RENEW a {bad} 1000"), FENCE);
        refused(&format!("LOCK.MRELEASE 1 a {bad}"), FENCE);
        refused(&format!("FENCE.CHECK a {bad}"), FENCE);
        refused(&format!("FENCE.CALL a {bad} GET x"), FENCE);
    }
}

#[test]
fn multi_counts() {
    let names = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>().join(" ");
    taken(&format!("LOCK.MACQUIRE 256 {} 1000", names(256)));
    refused(&format!("LOCK.MACQUIRE 257 {} 1000", names(257)), COUNT);
    for bad in NO_INTEGERS.into_iter().chain(["0"]) {
        refused(&format!("LOCK.MACQUIRE {bad} a 1000"), COUNT);
        refused(&format!("LOCK.MRELEASE {bad} a 7"), COUNT);
    }
    refused("LOCK.MACQUIRE 3 a b 1000", MISMATCH);
    refused("LOCK.MACQUIRE 2 a 1000", MISMATCH);
    refused("LOCK.MRELEASE 2 a 7", MISMATCH);
    refused("LOCK.MRELEASE 2 a 7 b", MISMATCH);
    refused("LOCK.MACQUIRE 2 a a 1000", "ERR resource 'a' is given twice");
    refused("LOCK.MACQUIRE 3 a b a 1000", "ERR resource 'a' is given twice");
    taken("LOCK.MRELEASE 2 a 7 a 8");
    let pairs = (0..256).map(|number| format!("n{number} 7")).collect::<Vec<_>>().join(" ");
    taken(&format!("LOCK.MRELEASE 256 {pairs}"));
    refused("LOCK.MACQUIRE 1 a b 1000", TTL);
}

#[test]
fn options_come_in_any_order_each_once_in_any_case() {
    taken("lock.acquire a 1000 tier correctness session 0000000000000001 owner o wait 5");
    taken("LOCK.ACQUIRE a 1000 wAiT 5 TIER efficiency");
    refused("LOCK.ACQUIRE a 1000 WAIT 5 WAIT 5", "ERR syntax error: option WAIT is given twice");
    refused("LOCK.ACQUIRE a 1000 OWNER o OWNER o", "ERR syntax error: option OWNER is given twice");
    refused("LOCK.ACQUIRE a 1000 SESSION s SESSION s", "ERR syntax error: option SESSION is given twice");
    refused(
        "LOCK.ACQUIRE a 1000 TIER efficiency TIER efficiency",
        "ERR syntax error: option TIER is given twice",
    );
    for option in ["WAIT", "OWNER", "SESSION", "TIER"] {
        refused(
            &format!("LOCK.ACQUIRE a 1000 {option}"),
            &format!("ERR syntax error: option {option} needs a value"),
        );
    }
    refused("LOCK.ACQUIRE a 1000 NX", "ERR syntax error: unknown option 'NX'");
    refused("LOCK.ACQUIRE a 1000 _", "ERR syntax error: unknown option ''");
    refused("LOCK.ACQUIRE a 1000 TIER strong", "ERR unknown tier 'strong': use EFFICIENCY or CORRECTNESS");
    for command in
        ["LOCK.RELEASE a 7", "LOCK.RENEW a 7 1000", "LOCK.INFO a", "LOCK.QUEUE a", "LOCK.FORCERELEASE a"]
    {
        taken(&format!("{command} TIER CORRECTNESS"));
        refused(&format!("{command} WAIT 5"), "ERR syntax error: unknown option 'WAIT'");
        refused(&format!("{command} TIER"), "ERR syntax error: option TIER needs a value");
    }
}

#[test]
fn scan_words() {
    taken("LOCK.SCAN 0");
    taken("LOCK.SCAN 18446744073709551615 COUNT 10000 MATCH p*1024 TIER efficiency");
    for bad in NO_INTEGERS {
        refused(&format!("LOCK.SCAN {bad}"), "ERR invalid cursor");
        refused(&format!("LOCK.SCAN 0 COUNT {bad}"), "ERR COUNT must be an integer from 1 to 10000");
    }
    refused("LOCK.SCAN 0 COUNT 0", "ERR COUNT must be an integer from 1 to 10000");
    // As for `SCAN`, any positive number; more than 10,000 are taken as that.
    taken("LOCK.SCAN 0 COUNT 10001");
    taken("LOCK.SCAN 0 COUNT 9223372036854775807");
    refused("LOCK.SCAN 0 COUNT 9223372036854775808", "ERR COUNT must be an integer from 1 to 10000");
    refused("LOCK.SCAN 0 MATCH p*1025", "ERR pattern must be 1 to 1024 bytes");
    refused("LOCK.SCAN 0 MATCH _", "ERR pattern must be 1 to 1024 bytes");
    refused("LOCK.SCAN 0 MATCH a MATCH b", "ERR syntax error: option MATCH is given twice");
    refused("LOCK.SCAN 0 COUNT", "ERR syntax error: option COUNT needs a value");
    refused("LOCK.SCAN 0 TYPE string", "ERR syntax error: unknown option 'TYPE'");
}

#[test]
fn session_words() {
    taken("LOCK.SESSION OPEN 1000 NAME l*256");
    taken("LOCK.SESSION keepalive anything");
    refused("LOCK.SESSION OPEN 1000 NAME l*257", "ERR session name must be 1 to 256 bytes");
    refused("LOCK.SESSION OPEN 1000 NAME _", "ERR session name must be 1 to 256 bytes");
    refused("LOCK.SESSION OPEN 1000 NAME a NAME b", "ERR syntax error: option NAME is given twice");
    refused("LOCK.SESSION OPEN 1000 NAME", "ERR syntax error: option NAME needs a value");
    refused("LOCK.SESSION OPEN 1000 LABEL a", "ERR syntax error: unknown option 'LABEL'");
    refused("LOCK.SESSION RENEW x", "ERR unknown subcommand 'RENEW' of LOCK.SESSION");
    refused("LOCK.SESSION CLOSE x y", "ERR wrong number of arguments for 'lock.session' command");
}

#[test]
fn cluster_words() {
    taken("LOCK.CLUSTER info");
    taken("LOCK.CLUSTER ADD 65535 host:65535");
    for bad in NO_INTEGERS.into_iter().chain(["0", "65536"]) {
        refused(&format!("LOCK.CLUSTER REMOVE {bad}"), "ERR node id must be an integer from 1 to 65535");
    }
    for bad in ["host", "host:", ":1", "host:0", "host:65536", "h*300:1", "host:01"] {
        let line = format!("LOCK.CLUSTER ADD 1 {bad}");
        if bad.starts_with("h*") {
            let mut words = argv("LOCK.CLUSTER ADD 1 x");
            words[3] = format!("{}:1", "h".repeat(254)).into_bytes();
            assert!(grammar::parse(&words).unwrap().is_err());
        } else {
            refused(&line, "ERR node address must be host:port, at most 255 bytes");
        }
    }
    taken("LOCK.CLUSTER backup begin");
    taken("LOCK.CLUSTER BACKUP READ 16777217 0");
    refused("LOCK.CLUSTER BACKUP READ 1 -1", "ERR id and offset of a backup must be non-negative integers");
    refused("LOCK.CLUSTER BACKUP END", "ERR wrong number of arguments for 'lock.cluster backup' command");
    refused("LOCK.CLUSTER BACKUP STOP", "ERR unknown subcommand 'STOP' of LOCK.CLUSTER BACKUP");
    refused("LOCK.CLUSTER SPLIT", "ERR unknown subcommand 'SPLIT' of LOCK.CLUSTER");
    refused("LOCK.CLUSTER ADD 1", "ERR wrong number of arguments for 'lock.cluster' command");
}

#[test]
fn too_few_words() {
    for row in table::ROWS {
        let wrong = format!("ERR wrong number of arguments for '{}' command", row.name.to_ascii_lowercase());
        let least = row.arity.unsigned_abs() as usize;
        for words in 1..least {
            let line = std::iter::once(row.name)
                .chain(std::iter::repeat_n("1", words - 1))
                .collect::<Vec<_>>()
                .join(" ");
            refused(&line, &wrong);
        }
        if row.arity > 0 {
            let line = std::iter::once(row.name)
                .chain(std::iter::repeat_n("1", least))
                .collect::<Vec<_>>()
                .join(" ");
            refused(&line, &wrong);
        }
    }
}

#[test]
fn others_commands_are_not_ours() {
    for line in
        ["GET a", "LOCK", "LOCK.", "LOCK.NOTHING a", "FENCE.", "XLOCK.ACQUIRE a 1", "LOCKXACQUIRE a 1"]
    {
        assert!(grammar::parse(&argv(line)).is_none(), "{line}");
    }
    assert!(grammar::parse::<Vec<u8>>(&[]).is_none());
    assert!(grammar::parse(&[Vec::new()]).is_none());
}

#[test]
fn words_are_binary_safe() {
    let words: Vec<Vec<u8>> =
        vec![b"LOCK.ACQUIRE".to_vec(), vec![0, 13, 10, 255], b"5".to_vec(), b"OWNER".to_vec(), vec![0]];
    match grammar::parse(&words).unwrap().unwrap() {
        Request::Acquire(request) => {
            assert_eq!(request.resource, [0, 13, 10, 255]);
            assert_eq!(request.options.owner, Some(&[0][..]));
        }
        other => panic!("{other:?}"),
    }
    // What a client wrote is shown in an error without its control bytes, and cut.
    let words: Vec<Vec<u8>> =
        vec![b"LOCK.INFO".to_vec(), b"a".to_vec(), [&b"x\r\n"[..], &[b'y'; 100]].concat()];
    let refusal = grammar::parse(&words).unwrap().unwrap_err();
    assert_eq!(refusal.0, format!("ERR syntax error: unknown option 'x??{}'", "y".repeat(61)));
    assert_eq!(refusal.code(), "ERR");
}

#[test]
fn what_is_read_is_what_was_said() {
    let words = argv("LOCK.MACQUIRE 2 b a 1000 TIER correctness WAIT 7");
    match grammar::parse(&words).unwrap().unwrap() {
        Request::MAcquire(request) => {
            assert_eq!(request.resources.as_slice(), [&b"b"[..], b"a"]);
            assert_eq!((request.ttl_ms, request.options.wait_ms), (1000, Some(7)));
            assert_eq!(request.options.tier, Some(Tier::Correctness));
        }
        other => panic!("{other:?}"),
    }
    let words = argv("LOCK.RENEW a 8 9");
    match grammar::parse(&words).unwrap().unwrap() {
        Request::Renew(request) => {
            assert_eq!((request.fence, request.ttl_ms, request.tier), (Fence(8), 9, None))
        }
        other => panic!("{other:?}"),
    }
    let words = argv("LOCK.SESSION OPEN 5 NAME n");
    let request = grammar::parse(&words).unwrap().unwrap();
    assert_eq!(
        request,
        Request::Session(SessionCommand::Open { ttl_ms: 5, label: Some(b"n"), policy: None, age: None })
    );
    assert_eq!(request.tier(), Some(Tier::Correctness));
}

#[test]
fn kinds_of_locks_are_read_strictly() {
    let kind_of = |line: &str| match grammar::parse(&argv(line)).unwrap().unwrap() {
        Request::Acquire(request) => (request.options.kind, request.options.value.map(<[u8]>::to_vec)),
        other => panic!("{other:?}"),
    };
    assert_eq!(kind_of("LOCK.ACQUIRE a 1"), (LockKind::Exclusive, None));
    assert_eq!(kind_of("LOCK.ACQUIRE a 1 shared value v"), (LockKind::Shared, Some(b"v".to_vec())));
    let permits = LockKind::Permits { count: 1, max: 1_000_000 };
    assert_eq!(kind_of("LOCK.ACQUIRE a 1 permits 1 of 1000000 wait 5"), (permits, None));
    const RANGE: &str = "ERR PERMITS n OF max: integers with 1 <= n <= max <= 1000000";
    for bad in ["0 OF 1", "2 OF 1", "1 OF 1000001", "x OF 1", "01 OF 1", "1 OF -1"] {
        refused(&format!("LOCK.ACQUIRE a 1 PERMITS {bad}"), RANGE);
    }
    refused("LOCK.ACQUIRE a 1 PERMITS 1 IN 2", "ERR syntax error: write PERMITS n OF max");
    for short in ["PERMITS", "PERMITS 1", "PERMITS 1 OF"] {
        refused(&format!("LOCK.ACQUIRE a 1 {short}"), "ERR syntax error: write PERMITS n OF max");
    }
    refused("LOCK.ACQUIRE a 1 SHARED SHARED", "ERR syntax error: option SHARED is given twice");
    let both = "ERR syntax error: SHARED and PERMITS cannot be given together";
    refused("LOCK.ACQUIRE a 1 SHARED PERMITS 1 OF 2", both);
    refused("LOCK.ACQUIRE a 1 PERMITS 1 OF 2 SHARED", both);
    taken(&format!("LOCK.ACQUIRE a 1 VALUE {}", "v".repeat(1024)));
    let long = format!("LOCK.ACQUIRE a 1 VALUE {}", "v".repeat(1025));
    refused(&long, "ERR VALUE must be at most 1024 bytes");
    taken("LOCK.MACQUIRE 1 a 1 SHARED");
    refused("LOCK.MACQUIRE 1 a 1 VALUE v", "ERR syntax error: unknown option 'VALUE'");
    refused("LOCK.MACQUIRE 1 a 1 PERMITS 1 OF 2", "ERR syntax error: unknown option 'PERMITS'");
    taken("LOCK.FORCERELEASE a FENCE 5 TIER correctness");
    refused("LOCK.FORCERELEASE a FENCE 0", "ERR fence must be an integer from 1 to 9007199254740991");
}

#[test]
fn conversions_notices_and_policies_are_read_strictly() {
    let convert = argv("LOCK.CONVERT a 7 exclusive wait 9");
    match grammar::parse(&convert).unwrap().unwrap() {
        Request::Convert(request) => {
            assert_eq!((request.fence, request.to), (Fence(7), ConvertTo::Exclusive));
            assert_eq!(request.wait_ms, Some(9));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(grammar::parse(&convert).unwrap().unwrap().wait_ms(), 9);
    refused("LOCK.CONVERT a 7 PERMITS", "ERR syntax error: convert to SHARED or EXCLUSIVE, not 'PERMITS'");
    refused("LOCK.CONVERT a 7 SHARED TIER correctness", "ERR syntax error: unknown option 'TIER'");
    refused("LOCK.CONVERT a 7", "ERR wrong number of arguments for 'lock.convert' command");
    taken("LOCK.NOTIFY ON");
    taken("LOCK.NOTIFY on SESSION 0000000000000001");
    taken("LOCK.NOTIFY OFF");
    refused("LOCK.NOTIFY OFF now", "ERR wrong number of arguments for 'lock.notify' command");
    refused("LOCK.NOTIFY MAYBE", "ERR unknown subcommand 'MAYBE' of LOCK.NOTIFY");
    refused("LOCK.NOTIFY ON SESSION", "ERR syntax error: option SESSION needs a value");
    taken("LOCK.EXPLAIN a TIER correctness");
    taken("LOCK.SESSION OPEN 5 POLICY Wound-Wait AGE 0 NAME n");
    let policy = "ERR unknown policy 'none': use detect, wait-die or wound-wait";
    refused("LOCK.SESSION OPEN 5 POLICY none", policy);
    refused("LOCK.SESSION OPEN 5 AGE -1", "ERR AGE must be an integer from 0 to 9007199254740991");
}
