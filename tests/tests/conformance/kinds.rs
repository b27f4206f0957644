//! Kinds of locks (Tier 2): shared, permits, conversion, policies; values; and Tier 1, which has exclusive ones alone.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::CORRECTNESS => [
        readers_hold_together_and_no_writer_beside_them,
        nobody_overtakes_a_waiting_writer,
        a_run_of_readers_is_served_at_once,
        every_reader_has_its_own_lease,
        a_retry_of_a_reader_keeps_its_fence,
        permits_up_to_max,
        permits_wait_for_enough,
        permits_do_not_mix,
        a_lock_converts_down_and_up,
        an_upgrade_waits_for_the_other_readers,
        a_second_upgrader_is_refused,
        an_upgrade_that_runs_out_keeps_the_shared_hold,
        multi_locks_are_shared_too,
        a_session_ends_with_its_readers,
        force_release_takes_all_or_one,
        wait_die_waits_for_younger_sessions_only,
        wound_wait_takes_from_younger_sessions,
        info_shows_all_holders,
    ],
    Abilities::NONE => [
        values_are_shown,
        a_retry_keeps_the_value,
        a_waiter_brings_its_value,
        an_empty_value_is_none,
        held_ms_counts_from_the_grant,
        force_release_names_a_fence,
    ],
    Abilities::EVENTS => [values_are_in_the_events],
    Abilities::CORRECTNESS.and(Abilities::PLAIN_KEYS) => [a_plain_key_converts_where_its_value_can_be_an_owner],
    Abilities::EFFICIENCY_ALONE => [
        tier_1_has_exclusive_locks_alone,
    ],
}

fn grant(client: &mut Client, line: &str) -> expect::Grant {
    let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    expect::granted(&client.ask(&words))
}

fn said(client: &mut Client, line: &str) -> Value {
    let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    client.ask(&words)
}

fn send(client: &mut Client, line: &str) {
    let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    client.send(&words);
}

fn await_waiters(client: &mut Client, name: &str, count: i64) {
    assert!(poll_until(REPLY_WITHIN, || client.info(name).waiters == count), "{count} should wait");
}

fn field(client: &mut Client, name: &str, field: &str) -> Value {
    let reply = said(client, &format!("LOCK.INFO {name}"));
    let pairs = expect::pairs(&reply, client.protocol());
    pairs.into_iter().find(|(key, _)| key == field).unwrap_or_else(|| panic!("no {field}")).1
}

fn readers_hold_together_and_no_writer_beside_them(context: &Context) {
    let (mut one, mut two, name) = (context.client(), context.client(), context.name("lock"));
    let first = grant(&mut one, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    let second = grant(&mut two, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    assert!(second.fence > first.fence);
    assert_eq!(said(&mut two, &format!("LOCK.ACQUIRE {name} 20000")), context.protocol().nil());
    one.release(&name, first.fence);
    assert_eq!(said(&mut two, &format!("LOCK.ACQUIRE {name} 20000")), context.protocol().nil());
    two.release(&name, second.fence);
    let writer = grant(&mut two, &format!("LOCK.ACQUIRE {name} 20000"));
    assert_eq!(said(&mut one, &format!("LOCK.ACQUIRE {name} 20000 SHARED")), context.protocol().nil());
    two.release(&name, writer.fence);
}

fn nobody_overtakes_a_waiting_writer(context: &Context) {
    let (mut reader, mut writer, mut late) = (context.client(), context.client(), context.client());
    let name = context.name("lock");
    let first = grant(&mut reader, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    send(&mut writer, &format!("LOCK.ACQUIRE {name} 20000 WAIT 10000"));
    await_waiters(&mut late, &name, 1);
    assert_eq!(said(&mut late, &format!("LOCK.ACQUIRE {name} 20000 SHARED")), context.protocol().nil());
    reader.release(&name, first.fence);
    let fence = expect::granted(&writer.receive()).fence;
    writer.release(&name, fence);
}

fn a_run_of_readers_is_served_at_once(context: &Context) {
    let (mut writer, mut one, mut two) = (context.client(), context.client(), context.client());
    let name = context.name("lock");
    let held = grant(&mut writer, &format!("LOCK.ACQUIRE {name} 20000"));
    send(&mut one, &format!("LOCK.ACQUIRE {name} 20000 SHARED WAIT 10000"));
    await_waiters(&mut writer, &name, 1);
    send(&mut two, &format!("LOCK.ACQUIRE {name} 20000 SHARED WAIT 10000"));
    await_waiters(&mut writer, &name, 2);
    writer.release(&name, held.fence);
    let (first, second) = (expect::granted(&one.receive()), expect::granted(&two.receive()));
    assert!(held.fence < first.fence && first.fence < second.fence, "first come, first served");
}

fn every_reader_has_its_own_lease(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let short = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    let long = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    let ended = poll_until(REPLY_WITHIN, || {
        said(&mut client, &format!("LOCK.RENEW {name} {} 60", short.fence)).array()[0].integer() == 0 || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            false
        }
    });
    assert!(ended, "the short lease ends");
    let renewed = said(&mut client, &format!("LOCK.RENEW {name} {} 30000", long.fence));
    assert_eq!(renewed.array()[0].integer(), 1, "{renewed:?}");
    client.release(&name, long.fence);
}

fn a_retry_of_a_reader_keeps_its_fence(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let first = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER me SHARED"));
    grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER you SHARED"));
    let again = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER me SHARED"));
    assert_eq!(again.fence, first.fence);
    expect::error(&said(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER me")), "MODE");
}

fn permits_up_to_max(context: &Context) {
    let (mut client, name) = (context.client(), context.name("pool"));
    let two = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER a PERMITS 2 OF 3"));
    let more = format!("LOCK.ACQUIRE {name} 20000 OWNER b PERMITS 2 OF 3");
    assert_eq!(said(&mut client, &more), context.protocol().nil());
    grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER b PERMITS 1 OF 3"));
    grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER c PERMITS 1 OF 4"));
    client.release(&name, two.fence);
    assert_eq!(field(&mut client, &name, "mode"), Value::bulk("permits"));
    assert_eq!(field(&mut client, &name, "max"), Value::Integer(3), "of the oldest");
    let wrong = said(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER b PERMITS 2 OF 3"));
    expect::error(&wrong, "MODE");
}

fn permits_wait_for_enough(context: &Context) {
    let (mut holder, mut waiter, name) = (context.client(), context.client(), context.name("pool"));
    let one = grant(&mut holder, &format!("LOCK.ACQUIRE {name} 20000 PERMITS 1 OF 2"));
    let other = grant(&mut holder, &format!("LOCK.ACQUIRE {name} 20000 PERMITS 1 OF 2"));
    send(&mut waiter, &format!("LOCK.ACQUIRE {name} 20000 PERMITS 2 OF 2 WAIT 10000"));
    await_waiters(&mut holder, &name, 1);
    holder.release(&name, one.fence);
    let late = said(&mut holder, &format!("LOCK.ACQUIRE {name} 20000 PERMITS 1 OF 2"));
    assert_eq!(late, context.protocol().nil());
    holder.release(&name, other.fence);
    expect::granted(&waiter.receive());
}

fn permits_do_not_mix(context: &Context) {
    let (mut client, name) = (context.client(), context.name("pool"));
    let permit = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 PERMITS 1 OF 2"));
    for words in ["", " SHARED", " WAIT 100"] {
        expect::error(&said(&mut client, &format!("LOCK.ACQUIRE {name} 20000{words}")), "MODE");
    }
    expect::error(&said(&mut client, &format!("LOCK.CONVERT {name} {} SHARED", permit.fence)), "MODE");
    client.release(&name, permit.fence);
    let lock = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000"));
    expect::error(&said(&mut client, &format!("LOCK.ACQUIRE {name} 20000 PERMITS 1 OF 2")), "MODE");
    client.release(&name, lock.fence);
}

fn a_lock_converts_down_and_up(context: &Context) {
    let (mut client, mut other, name) = (context.client(), context.client(), context.name("lock"));
    let fence = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000")).fence;
    send(&mut other, &format!("LOCK.ACQUIRE {name} 20000 SHARED WAIT 10000"));
    await_waiters(&mut client, &name, 1);
    assert_eq!(grant(&mut client, &format!("LOCK.CONVERT {name} {fence} SHARED")).fence, fence);
    let reader = expect::granted(&other.receive());
    other.release(&name, reader.fence);
    let up = grant(&mut client, &format!("LOCK.CONVERT {name} {fence} EXCLUSIVE"));
    assert!(up.fence > reader.fence);
    let old = said(&mut client, &format!("LOCK.RELEASE {name} {fence}"));
    assert_eq!(old.array()[1].text(), "already_released");
    client.release(&name, up.fence);
    let gone = said(&mut client, &format!("LOCK.CONVERT {name} {} SHARED", up.fence));
    assert_eq!(gone, context.protocol().nil());
}

fn a_plain_key_converts_where_its_value_can_be_an_owner(context: &Context) {
    let mut client = context.client();
    for (bytes, converts) in [(0, false), (1, true), (256, true), (257, false)] {
        let name = context.name(&format!("plain-{bytes}"));
        ask!(client, "SET", &name, "x".repeat(bytes));
        let fence = field(&mut client, &name, "fence").integer();
        let reply = said(&mut client, &format!("LOCK.CONVERT {name} {fence} SHARED"));
        match converts {
            true => assert_eq!(expect::granted(&reply).fence, fence, "{bytes} bytes"),
            false => assert!(expect::error(&reply, "MODE").contains("256"), "{bytes} bytes"),
        }
    }
}

fn an_upgrade_waits_for_the_other_readers(context: &Context) {
    let (mut client, mut other, mut late) = (context.client(), context.client(), context.client());
    let name = context.name("lock");
    let mine = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    let theirs = grant(&mut other, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    send(&mut client, &format!("LOCK.CONVERT {name} {} EXCLUSIVE WAIT 10000", mine.fence));
    await_waiters(&mut late, &name, 1);
    assert_eq!(said(&mut late, &format!("LOCK.ACQUIRE {name} 20000 SHARED")), context.protocol().nil());
    other.release(&name, theirs.fence);
    assert!(expect::granted(&client.receive()).fence > theirs.fence);
    assert_eq!(field(&mut late, &name, "mode"), Value::bulk("exclusive"));
}

fn a_second_upgrader_is_refused(context: &Context) {
    let (mut client, mut other, name) = (context.client(), context.client(), context.name("lock"));
    let mine = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    let theirs = grant(&mut other, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    send(&mut client, &format!("LOCK.CONVERT {name} {} EXCLUSIVE WAIT 10000", mine.fence));
    await_waiters(&mut other, &name, 1);
    let refused = said(&mut other, &format!("LOCK.CONVERT {name} {} EXCLUSIVE WAIT 10000", theirs.fence));
    expect::error(&refused, "DEADLOCK");
    other.release(&name, theirs.fence);
    expect::granted(&client.receive());
}

fn an_upgrade_that_runs_out_keeps_the_shared_hold(context: &Context) {
    let (mut client, mut other, name) = (context.client(), context.client(), context.name("lock"));
    let mine = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    let theirs = grant(&mut other, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    for wait in ["", " WAIT 30"] {
        let convert = format!("LOCK.CONVERT {name} {} EXCLUSIVE{wait}", mine.fence);
        assert_eq!(said(&mut client, &convert), context.protocol().nil());
    }
    client.release(&name, mine.fence);
    other.release(&name, theirs.fence);
}

fn values_are_shown(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let fence = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 VALUE 10.0.0.1:80")).fence;
    assert_eq!(field(&mut client, &name, "value"), Value::bulk("10.0.0.1:80"));
    client.release(&name, fence);
    assert_eq!(field(&mut client, &name, "value"), context.protocol().nil());
    let long = "v".repeat(1025);
    expect::error(&said(&mut client, &format!("LOCK.ACQUIRE {name} 20000 VALUE {long}")), "ERR");
}

fn multi_locks_are_shared_too(context: &Context) {
    let (mut one, mut two) = (context.client(), context.client());
    let (a, b) = (context.name("a"), context.name("b"));
    for client in [&mut one, &mut two] {
        let reply = said(client, &format!("LOCK.MACQUIRE 2 {a} {b} 20000 SHARED"));
        assert_eq!(reply.array()[0].array().len(), 2, "{reply:?}");
    }
    assert_eq!(said(&mut one, &format!("LOCK.ACQUIRE {a} 20000")), context.protocol().nil());
}

fn a_session_ends_with_its_readers(context: &Context) {
    let (mut client, mut writer, name) = (context.client(), context.client(), context.name("lock"));
    let session = ask!(client, "LOCK.SESSION", "OPEN", 30_000).text();
    grant(&mut client, &format!("LOCK.ACQUIRE {name} 0 SHARED SESSION {session}"));
    send(&mut writer, &format!("LOCK.ACQUIRE {name} 20000 WAIT 10000"));
    await_waiters(&mut client, &name, 1);
    assert_eq!(ask!(client, "LOCK.SESSION", "CLOSE", session.as_str()).integer(), 1);
    expect::granted(&writer.receive());
}

fn force_release_takes_all_or_one(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let one = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    for _ in 0..2 {
        grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 SHARED"));
    }
    let by_fence = format!("LOCK.FORCERELEASE {name} FENCE {}", one.fence);
    assert_eq!(said(&mut client, &by_fence).integer(), 1);
    assert_eq!(said(&mut client, &by_fence).integer(), 0);
    assert_eq!(client.info(&name).state, "held");
    assert_eq!(said(&mut client, &format!("LOCK.FORCERELEASE {name}")).integer(), 1);
    assert_eq!(client.info(&name).state, "free");
}

fn open(client: &mut Client, policy: &str) -> String {
    ask!(client, "LOCK.SESSION", "OPEN", 30_000, "POLICY", policy).text()
}

fn wait_die_waits_for_younger_sessions_only(context: &Context) {
    let (mut client, mut waiter, name) = (context.client(), context.client(), context.name("lock"));
    let (old, young) = (open(&mut client, "wait-die"), open(&mut client, "wait-die"));
    let held = grant(&mut client, &format!("LOCK.ACQUIRE {name} 0 SESSION {old}"));
    let refused = said(&mut waiter, &format!("LOCK.ACQUIRE {name} 0 SESSION {young} WAIT 10000"));
    expect::error(&refused, "DEADLOCK");
    client.release(&name, held.fence);
    let held = grant(&mut client, &format!("LOCK.ACQUIRE {name} 0 SESSION {young}"));
    send(&mut waiter, &format!("LOCK.ACQUIRE {name} 0 SESSION {old} WAIT 10000"));
    await_waiters(&mut client, &name, 1);
    client.release(&name, held.fence);
    expect::granted(&waiter.receive());
}

fn wound_wait_takes_from_younger_sessions(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let (old, young) = (open(&mut client, "wound-wait"), open(&mut client, "wound-wait"));
    let held = grant(&mut client, &format!("LOCK.ACQUIRE {name} 0 SESSION {young}"));
    let taken = grant(&mut client, &format!("LOCK.ACQUIRE {name} 0 SESSION {old} WAIT 10000"));
    assert!(taken.fence > held.fence);
    let reply = said(&mut client, &format!("LOCK.RELEASE {name} {}", held.fence));
    assert_eq!(reply.array()[1].text(), "expired");
    let late = said(&mut client, &format!("LOCK.ACQUIRE {name} 0 SESSION {young} WAIT 30"));
    assert_eq!(late, context.protocol().nil());
}

fn info_shows_all_holders(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let one = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER a SHARED VALUE v"));
    let two = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER b SHARED"));
    let info = client.info(&name);
    assert_eq!((info.owner.as_deref(), info.fence), (Some("a"), two.fence), "the oldest, the last fence");
    let holders = field(&mut client, &name, "holders");
    let rows: Vec<Vec<(String, Value)>> =
        holders.array().iter().map(|holder| expect::holder_pairs(holder, context.protocol())).collect();
    assert_eq!(rows[0][1].1, Value::Integer(one.fence));
    assert_eq!(rows[1][1].1, Value::Integer(two.fence));
    assert_eq!(rows[0][6].1, Value::bulk("v"));
    let nil = context.protocol().nil();
    assert_eq!((&rows[1][6].1, &rows[0][5].1), (&nil, &nil));
}

fn tier_1_has_exclusive_locks_alone(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    for words in ["SHARED", "PERMITS 1 OF 2", "VALUE v SHARED"] {
        expect::error(&said(&mut client, &format!("LOCK.ACQUIRE {name} 20000 {words}")), "TIER");
    }
    expect::error(&said(&mut client, &format!("LOCK.MACQUIRE 1 {name} 20000 SHARED")), "TIER");
    assert_eq!(client.info(&name).state, "free");
    let fence = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000")).fence;
    for line in [
        format!("LOCK.CONVERT {name} {fence} SHARED").as_str(),
        format!("LOCK.EXPLAIN {name}").as_str(),
        "LOCK.SESSION OPEN 1000 POLICY wound-wait",
        "LOCK.NOTIFY ON",
    ] {
        expect::error(&said(&mut client, line), "TIER");
    }
    client.release(&name, fence);
}

fn a_retry_keeps_the_value(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let first = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 OWNER me VALUE one"));
    let again = grant(&mut client, &format!("LOCK.ACQUIRE {name} 40000 OWNER me VALUE two"));
    assert_eq!(again.fence, first.fence);
    client.renew(&name, first.fence, 60_000);
    assert_eq!(field(&mut client, &name, "value"), Value::bulk("one"));
}

fn a_waiter_brings_its_value(context: &Context) {
    let (mut client, mut waiter, name) = (context.client(), context.client(), context.name("lock"));
    let first = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 VALUE one"));
    send(&mut waiter, &format!("LOCK.ACQUIRE {name} 20000 WAIT 10000 VALUE two"));
    await_waiters(&mut client, &name, 1);
    client.release(&name, first.fence);
    expect::granted(&waiter.receive());
    assert_eq!(field(&mut client, &name, "value"), Value::bulk("two"));
}

fn an_empty_value_is_none(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 20_000, "VALUE", ""));
    assert_eq!(field(&mut client, &name, "value"), context.protocol().nil());
}

fn held_ms_counts_from_the_grant(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let fence = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000")).fence;
    let before = field(&mut client, &name, "held_ms").integer();
    client.renew(&name, fence, 30_000);
    let rises = poll_until(REPLY_WITHIN, || field(&mut client, &name, "held_ms").integer() > before + 20);
    assert!(before >= 0 && rises, "a renewal does not set it back");
}

fn force_release_names_a_fence(context: &Context) {
    let (mut client, name) = (context.client(), context.name("lock"));
    let held = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000"));
    let other = format!("LOCK.FORCERELEASE {name} FENCE {}", held.fence - 1);
    assert_eq!(said(&mut client, &other).integer(), 0);
    let by_fence = format!("LOCK.FORCERELEASE {name} FENCE {}", held.fence);
    assert_eq!(said(&mut client, &by_fence).integer(), 1);
    assert_eq!(said(&mut client, &by_fence).integer(), 0);
}

fn values_are_in_the_events(context: &Context) {
    let (mut client, mut watcher, name) = (context.client(), context.client(), context.name("lock"));
    send(&mut watcher, &format!("SUBSCRIBE __lock__:{name}"));
    watcher.receive();
    let first = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000 VALUE v"));
    client.renew(&name, first.fence, 30_000);
    client.release(&name, first.fence);
    let second = grant(&mut client, &format!("LOCK.ACQUIRE {name} 20000"));
    assert_eq!(said(&mut client, &format!("LOCK.FORCERELEASE {name}")).integer(), 1);
    for (event, fence, value, cause) in [
        ("acquired", first.fence, Some("v"), None),
        ("renewed", first.fence, Some("v"), None),
        ("released", first.fence, Some("v"), None),
        ("acquired", second.fence, None, None),
        ("released", second.fence, None, Some("forced")),
    ] {
        let message = watcher.receive();
        let items = if let Value::Push(items) = &message { items.as_slice() } else { message.array() };
        let json: serde_json::Value = serde_json::from_slice(items[2].bytes()).expect("JSON");
        assert_eq!((json["event"].as_str(), json["fence"].as_i64()), (Some(event), Some(fence)), "{json}");
        assert_eq!((json["value"].as_str(), json["cause"].as_str()), (value, cause), "{json}");
    }
}
