//! Scripts of users with limited rights: every call is asked about, and a script that may do all its form can do is still recognised.

use super::*;
use crate::keyspace::acl_table;
use crate::keyspace::table::{self, Run};
use crate::machine::settings::{Founding, SettingsCommand};
use crate::machine::AdminAct;
use crate::routes::Routing;
use crate::script::{routed_rights, Terms, AS_USER};
use crate::types::{SessionId, Tier};

/// Rights are a key: only commands on it are allowed.
fn only_this_key(rights: &[u8], argv: &[&[u8]]) -> Result<(), Refusal> {
    match argv.get(1) {
        Some(key) if *key == rights => Ok(()),
        Some(_) | None => Err(Refusal::new("NOPERM not that key")),
    }
}

const COMPARE_AND_DELETE: &[u8] =
    b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

#[test]
fn every_call_is_checked_with_the_rights_that_came() {
    let mut bench = Bench::new();
    bench.engine = Engine::with_guard(only_this_key);
    let mut eval = |rights: &[u8], body: &[u8]| bench.reply(&[AS_USER, rights, b"EVAL", body, b"0"]);
    assert_eq!(eval(b"a", b"return redis.call('set', 'a', 'x')"), Reply::OK);
    assert_eq!(eval(b"a", b"return redis.pcall('set', 'b', 'x').err"), Reply::bulk("NOPERM not that key"));
    assert_eq!(eval(b"a", b"redis.pcall('set', 'b', 'x') return redis.call('get', 'a')"), Reply::bulk("x"));
    let refused = eval(b"a", b"return redis.call('get', 'b')");
    assert!(matches!(&refused, Reply::Error(refusal) if refusal.code() == "NOPERM"), "{refused:?}");
    assert_eq!(bench.reply(&[b"GET", b"b"]), Reply::Nil);
    // Who sends no rights is not limited.
    assert_eq!(bench.reply(&[b"EVAL", b"return redis.call('set', 'b', 'y')", b"0"]), Reply::OK);
}

#[test]
fn a_recognised_script_is_native_only_where_it_may_do_all_of_it() {
    let mut bench = Bench::new();
    bench.engine = Engine::with_guard(only_this_key);
    bench.reply(&[b"SET", b"a", b"1"]);
    bench.reply(&[b"SET", b"b", b"1"]);
    let call = |key: &'static [u8]| -> Vec<&[u8]> {
        vec![AS_USER, b"a", b"EVAL", COMPARE_AND_DELETE, b"1", key, b"1"]
    };
    let refused = bench.reply(&call(b"b"));
    assert!(matches!(&refused, Reply::Error(refusal) if refusal.code() == "NOPERM"), "{refused:?}");
    assert_eq!(bench.reply(&[b"EXISTS", b"b"]), Reply::Int(1));
    assert_eq!(bench.reply(&call(b"a")), Reply::Int(1));
}

#[test]
fn without_a_guard_no_limited_script_runs() {
    let mut bench = Bench::new();
    let refused = bench.reply(&[AS_USER, b"a", b"EVAL", b"return redis.call('set', 'a', 'x')", b"0"]);
    assert!(matches!(&refused, Reply::Error(refusal) if refusal.code() == "NOPERM"), "{refused:?}");
    assert_eq!(bench.reply(&[b"EXISTS", b"a"]), Reply::Int(0));
}

/// Who the user is does not travel with a script: one with limited rights is shown no session at all.
#[test]
fn a_limited_script_and_its_transaction_are_shown_no_session() {
    let mut bench = Bench::new();
    bench.engine = Engine::with_guard(only_this_key);
    let id = SessionId(7);
    bench.apply(&Command::SessionOpen { id, ttl_ms: 100_000, label: b"" });
    let (resource, owner, session) = (&b"a"[..], &b"o"[..], Some(id));
    bench.apply(&Command::Acquire { db: 0, resource, ttl_ms: 90_000, wait_ms: 0, owner, session });
    let body: &[u8] = b"local f = redis.call('LOCK.INFO', 'a') for i = 1, #f, 2 do \
        if f[i] == 'session' then return f[i + 1] end end";
    let shown = Reply::bulk(id.to_string());
    assert_eq!(bench.reply(&[b"EVAL", body, b"0"]), shown);
    assert_eq!(bench.reply(&[AS_USER, b"a", b"EVAL", body, b"0"]), Reply::Nil);
    let mut transaction = |commands: &[&[&[u8]]]| {
        let commands = commands.iter().map(|words| words.iter().copied().collect()).collect();
        let (resp, member, watched) = (Resp::Two, None, Vec::new());
        match bench.apply(&Command::Transaction { db: 0, resp, member, watched, commands }) {
            Reply::Array(replies) => replies,
            other => panic!("{other:?}"),
        }
    };
    let session_of = |reply: &Reply| match reply {
        Reply::Map(pairs) => {
            let found = pairs.iter().find(|(name, _)| *name == Reply::bulk("session"));
            found.expect("it is always there").1.clone()
        }
        other => panic!("{other:?}"),
    };
    let look: &[&[u8]] = &[b"LOCK.INFO", b"a"];
    let replies = transaction(&[look, &[b"EVAL", body, b"0"]]);
    assert_eq!((&session_of(&replies[0]), &replies[1]), (&shown, &shown));
    let replies = transaction(&[look, &[AS_USER, b"a", b"EVAL", body, b"0"]]);
    assert_eq!((&session_of(&replies[0]), &replies[1]), (&Reply::Nil, &Reply::Nil));
    // Nothing here tells whether the user is limited.
    let replies = transaction(&[look, &[b"SCRIPT", b"LOAD", b"return 1"]]);
    assert_eq!(session_of(&replies[0]), Reply::Nil);
}

/// Found by the matrix of commands and users: as it came it was logged, and every node stopped at the entry, again at each start.
#[test]
fn script_without_its_words_is_answered_and_never_logged_as_it_came() {
    for words in ["SCRIPT LOAD", "SCRIPT LOAD a b", "script load", "SCRIPT", "script"] {
        assert!(Bench::new().say(words).starts_with("-ERR"), "{words}");
    }
}

/// The node of the client writes it into its audit log.
#[test]
fn administrative_commands_of_a_script_are_told_once_each() {
    let mut bench = Bench::new();
    let body = b"redis.call('set', 'k', 'x') redis.call('FlushAll') redis.call('flushall') return redis.call('flushdb')";
    let argv: [&[u8]; 3] = [b"EVAL", body, b"0"];
    let argv = argv.into_iter().collect();
    let blob = bench.logged(&Command::Redis { db: 0, resp: Resp::Two, member: None, argv });
    let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: 1 };
    let mut out = Applied::default();
    bench.machine.apply(bench.stamp, Some(id), Command::decode(&blob).unwrap(), &mut out);
    assert_eq!(out.admin_acts, [(id, AdminAct::FlushAll), (id, AdminAct::FlushDb)]);
}

#[test]
fn all_administrative_commands_that_scripts_may_call_are_told() {
    for row in acl_table::ROWS.iter().filter(|row| row.categories & acl_table::ADMIN != 0) {
        let callable = table::find(row.name.as_bytes())
            .is_some_and(|row| matches!(row.run, Run::Here(_)) && !row.is(table::NOSCRIPT));
        assert_eq!(callable, AdminAct::named(row.name.as_bytes()).is_some(), "{}", row.name);
    }
    for line in ["LOCK.FORCERELEASE l", "LOCK.CLUSTER SET max-memory 1gb"] {
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let said = Bench::new().eval(&format!("return redis.call({})", words.join(", ")));
        assert!(said.contains("cannot be called from a script"), "{said}");
    }
}

/// What may not stand in a transaction either is not said to.
#[test]
fn the_refusal_of_a_lock_command_names_a_way_that_works() {
    for (line, is_for_multi) in [
        ("LOCK.ACQUIRE l 1000", true),
        ("LOCK.RELEASE l 1", true),
        ("LOCK.SESSION OPEN 1000", false),
        ("LOCK.CLUSTER INFO", false),
        ("LOCK.NOTIFY ON", false),
        ("FENCE.CHECK l 1", false),
        ("FENCE.GET l", false),
    ] {
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let said = Bench::new().eval(&format!("return redis.call({})", words.join(", ")));
        assert!(said.contains("cannot be called from a script: use it outside the script"), "{line}: {said}");
        assert_eq!(said.contains("MULTI"), is_for_multi, "{line}: {said}");
    }
}

/// With an upstream Redis behind: a script that meets a key of it is given up, whatever it does about the error.
#[test]
fn a_routed_script_is_given_up_at_a_key_of_the_other_tier() {
    let mut bench = Bench::new();
    bench.engine = Engine::with_guard(only_this_key);
    let routes = crate::routes::parse_list(b"w:hot=efficiency w:*=correctness").unwrap();
    let routing = Routing { routes, default_tier: Tier::Efficiency };
    bench.apply(&Command::Settings(SettingsCommand::Found(Founding { routing, ..Founding::default() })));
    let routed = routed_rights(None);
    let mut eval = |body: &[u8]| bench.reply(&[AS_USER, &routed, b"EVAL", body, b"1", b"w:1"]);
    let code = |reply: Reply| match reply {
        Reply::Error(refusal) => refusal.code().to_owned(),
        other => format!("{other:?}"),
    };
    for body in [
        &b"return redis.call('get', 'e')"[..],
        b"redis.call('set', KEYS[1], 'x') return redis.pcall('set', 'e', 'x').err",
        b"redis.call('set', KEYS[1], 'x') return tostring(pcall(redis.call, 'get', 'w:hot'))",
        b"return redis.call('LOCK.INFO', 'e')",
    ] {
        assert_eq!(code(eval(body)), "CROSSTIER");
    }
    assert_eq!(eval(b"return redis.call('exists', KEYS[1])"), Reply::Int(0), "nothing was changed");
    assert_eq!(
        eval(b"return redis.call('set', 'w:2', 'x')"),
        Reply::OK,
        "a key of its tier, declared or not"
    );
    assert_eq!(
        eval(b"return redis.call('LOCK.QUEUE', 'e', 'TIER', 'CORRECTNESS')"),
        Reply::Array(Vec::new())
    );
    // The script of a client whose keys are all here.
    assert_eq!(bench.reply(&[b"EVAL", b"return redis.call('set', 'e', 'x')", b"0"]), Reply::OK);
    // With the rights of its user.
    let limited = routed_rights(Some(b"w:2"));
    let mut eval = |body: &[u8]| bench.reply(&[AS_USER, &limited, b"EVAL", body, b"1", b"w:2"]);
    assert_eq!(eval(b"return redis.call('get', 'w:2')"), Reply::bulk("x"));
    assert_eq!(code(eval(b"return redis.call('get', 'w:3')")), "NOPERM");
    let limited = routed_rights(Some(b"e"));
    let reply = bench.reply(&[AS_USER, &limited, b"EVAL", b"return redis.call('get', 'e')", b"1", b"w:2"]);
    assert_eq!(code(reply), "CROSSTIER");
}

#[test]
fn terms_are_read_as_they_were_written() {
    assert_eq!(Terms::read(&routed_rights(None)), Terms { is_routed: true, rights: None });
    let rights = Some(&b"~a +@all"[..]);
    assert_eq!(Terms::read(&routed_rights(rights)), Terms { is_routed: true, rights });
    assert_eq!(Terms::read(b"~a +@all"), Terms { is_routed: false, rights });
    assert_eq!(Terms::read(b"routedx"), Terms { is_routed: false, rights: Some(b"routedx") });
}
