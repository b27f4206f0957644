//! Who is told of a lost lock, when, and who is not.

use super::support::{await_that, fence_of, start_cluster, Client, Node};
use super::{code, grant, node, resp3, runs_version_2, session, words};
use std::time::Duration;

const QUIET: Duration = Duration::from_millis(150);

/// A client that is told of the locks it loses.
fn notified(node: &Node) -> Client {
    let mut client = resp3(node);
    assert_eq!(client.ask(&["LOCK.NOTIFY", "ON"]), "OK");
    client
}

/// A grant that ends soon. One that ended before the node could tell of it, as on a busy machine, is answered with nil: the next is longer.
fn short_grant(client: &mut Client, resource: &str) -> u64 {
    for doublings in 0..10 {
        let reply = client.ask(&["LOCK.ACQUIRE", resource, &(20_u64 << doublings).to_string()]);
        if reply != "nil" {
            return fence_of(&reply);
        }
    }
    panic!("no grant of {resource} was told within 10 s");
}

/// The others stand still, and the first node has noticed. A client of it.
fn cut_off(nodes: &[Node]) -> Client {
    nodes[1..].iter().for_each(|node| node.process.signal("STOP"));
    let mut client = nodes[0].connect();
    await_that("it knows that it is cut off", || {
        client.ask(&words("LOCK.CLUSTER INFO")).contains("\"quorum\", 0")
    });
    client
}

fn lost(resource: &str, fence: u64, cause: &str, successor: &str) -> String {
    format!(">(\"lock-lost\", \"{resource}\", {fence}, \"{cause}\", {successor})")
}

#[test]
fn a_lost_lock_is_told_at_once_with_its_cause() {
    let node = node();
    let mut client = notified(&node);
    let mut other = node.connect();

    let expired = short_grant(&mut client, "e");
    assert_eq!(client.receive(), lost("e", expired, "expired", "nil"));

    let forced = grant(&mut client, "LOCK.ACQUIRE f 60000");
    other.send(&words("LOCK.ACQUIRE f 60000 WAIT 10000"));
    let mut third = node.connect();
    await_that("somebody waits", || third.ask(&words("LOCK.INFO f")).contains("\"waiters\", 1"));
    assert_eq!(third.ask(&words("LOCK.FORCERELEASE f")), "1");
    let successor = fence_of(&other.receive());
    assert_eq!(client.receive(), lost("f", forced, "forced", &successor.to_string()));

    let deleted = grant(&mut client, "LOCK.ACQUIRE d 60000");
    assert_eq!(other.ask(&words("DEL d")), "1");
    assert_eq!(client.receive(), lost("d", deleted, "deleted", "nil"));

    let id = session(&mut other, "LOCK.SESSION OPEN 60000");
    let ended = grant(&mut client, &format!("LOCK.ACQUIRE s 0 SHARED SESSION {id}"));
    assert_eq!(other.ask(&["LOCK.SESSION", "CLOSE", &id]), "1");
    assert_eq!(client.receive(), lost("s", ended, "session_ended", "nil"));

    let old = session(&mut other, "LOCK.SESSION OPEN 60000 POLICY wound-wait");
    let young = session(&mut other, "LOCK.SESSION OPEN 60000 POLICY wound-wait");
    let wounded = grant(&mut client, &format!("LOCK.ACQUIRE w 0 SESSION {young}"));
    let older = grant(&mut other, &format!("LOCK.ACQUIRE w 0 SESSION {old} WAIT 10000"));
    assert_eq!(client.receive(), lost("w", wounded, "wounded", &older.to_string()));
    let late = client.ask(&["LOCK.RELEASE", "w", &wounded.to_string()]);
    assert_eq!(late, "(0, \"expired\")", "its fence is stale");

    let released = grant(&mut client, "LOCK.ACQUIRE r 60000");
    assert_eq!(other.ask(&["LOCK.RELEASE", "r", &released.to_string()]), "(1, \"ok\")");
    let many = client.ask(&words("LOCK.MACQUIRE 2 x y 60000 SHARED"));
    assert!(many.starts_with("(("), "{many}");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE y")), "1");
    assert!(client.receive().starts_with(">(\"lock-lost\", \"y\", "), "a release is no loss");

    assert_eq!(client.ask(&words("LOCK.NOTIFY OFF")), "OK");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE x")), "1");
    assert!(client.hears_nothing_for(QUIET));
}

#[test]
fn a_loss_never_comes_before_the_grant_itself() {
    let node = node();
    let mut client = notified(&node);
    let mut other = node.connect();
    // The grant ends almost as soon as it is made; both come in one breath.
    for number in 0..50 {
        let line = format!("LOCK.ACQUIRE short:{number} 1");
        let force = format!("LOCK.FORCERELEASE short:{number}");
        client.send(&words(&line));
        other.send(&words(&force));
        let reply = client.receive();
        other.receive();
        if reply != "nil" {
            let fence = fence_of(&reply);
            let push = client.receive();
            assert!(push.starts_with(&format!(">(\"lock-lost\", \"short:{number}\", {fence}, ")), "{push}");
        }
    }
}

#[test]
fn losses_through_other_nodes_and_for_a_session_that_comes_back() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut opener = resp3(&nodes[0]);
    let id = session(&mut opener, "LOCK.SESSION OPEN 60000");
    let fence = grant(&mut opener, &format!("LOCK.ACQUIRE a 0 SESSION {id}"));
    let shared = grant(&mut opener, &format!("LOCK.ACQUIRE b 0 SHARED SESSION {id}"));

    let mut back = resp3(&nodes[1]);
    let held = back.ask(&["LOCK.NOTIFY", "ON", "SESSION", &id]);
    assert_eq!(held, format!("((\"a\", {fence}), (\"b\", {shared}))"));
    let mut other = nodes[2].connect();
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE b")), "1");
    assert_eq!(back.receive(), lost("b", shared, "forced", "nil"));
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE a")), "1");
    assert_eq!(back.receive(), lost("a", fence, "forced", "nil"));
    assert_eq!(back.ask(&["LOCK.NOTIFY", "ON", "SESSION", &id]), "()");
    let nobody = back.ask(&["LOCK.NOTIFY", "ON", "SESSION", "0123456789abcdef"]);
    assert_eq!(code(&nobody), "-NOSESSION");
    assert!(opener.hears_nothing_for(QUIET), "it never asked");
}

#[test]
fn resp2_clients_subscribe_to_losses() {
    let node = node();
    let mut watcher = node.connect();
    watcher.send(&words("SUBSCRIBE __lost__:r"));
    watcher.receive();
    let mut client = node.connect();
    let fence = grant(&mut client, "LOCK.ACQUIRE r 60000");
    assert_eq!(client.ask(&["LOCK.RELEASE", "r", &fence.to_string()]), "(1, \"ok\")");
    let fence = short_grant(&mut client, "r");
    let told = watcher.receive();
    let json = format!(
        "{{\\\"event\\\":\\\"lock-lost\\\",\\\"resource\\\":\\\"r\\\",\\\"fence\\\":{fence},\\\"cause\\\":\\\"expired\\\",\\\"successor\\\":null}}"
    );
    assert!(told.replace("\\\"", "\"").contains(&json.replace("\\\"", "\"")), "{told}");
}

/// Locks that a connection was told of before it asked to be told of losses, and in a transaction.
#[test]
fn every_lock_of_the_connection_is_watched() {
    let node = node();
    let mut other = node.connect();
    let mut client = resp3(&node);
    let before = grant(&mut client, "LOCK.ACQUIRE before 60000");
    let gone = grant(&mut client, "LOCK.ACQUIRE gone 60000");
    let released = grant(&mut client, "LOCK.ACQUIRE released 60000");
    assert_eq!(client.ask(&["LOCK.RELEASE", "released", &released.to_string()]), "(1, \"ok\")");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE gone")), "1");
    // A release that does not take place.
    let kept = grant(&mut client, "LOCK.ACQUIRE kept 60000");
    assert_eq!(client.ask(&words("WATCH w")), "OK");
    assert_eq!(other.ask(&words("SET w 1")), "OK");
    client.ask_all(&["MULTI", &format!("LOCK.RELEASE kept {kept}")]);
    assert_eq!(client.ask(&["EXEC"]), "nil");
    // The acquire is still under way when it says so.
    client.send(&words("LOCK.ACQUIRE pipelined 60000"));
    client.send(&words("LOCK.NOTIFY ON"));
    let pipelined = fence_of(&client.receive());
    assert_eq!(client.receive(), "OK");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE before")), "1");
    assert_eq!(client.receive(), lost("before", before, "forced", "nil"));
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE kept")), "1");
    assert_eq!(client.receive(), lost("kept", kept, "forced", "nil"));
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE pipelined")), "1");
    assert_eq!(client.receive(), lost("pipelined", pipelined, "forced", "nil"));

    let lines = [
        "MULTI",
        "LOCK.ACQUIRE t1 60000",
        "SELECT 1",
        "LOCK.MACQUIRE 2 t2 t3 60000 SHARED",
        "LOCK.ACQUIRE t4 60000 OWNER me",
        "SELECT 0",
    ];
    client.ask_all(&lines);
    let done = client.ask(&["EXEC"]);
    let fences: Vec<&str> = done.split(['(', ')', ',', ' ']).filter(|word| word.len() == 16).collect();
    assert_eq!(fences.len(), 4, "{done}");
    let mut elsewhere = node.connect();
    assert_eq!(elsewhere.ask(&words("SELECT 1")), "OK");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE t1")), "1");
    assert_eq!(client.receive(), lost("t1", fences[0].parse().unwrap(), "forced", "nil"));
    for (at, name) in ["t2", "t3", "t4"].into_iter().enumerate() {
        assert_eq!(elsewhere.ask(&["LOCK.FORCERELEASE", name]), "1");
        assert_eq!(client.receive(), lost(name, fences[at + 1].parse().unwrap(), "forced", "nil"));
    }
    // Taken and given back in one step: nothing is lost.
    client.ask_all(&["MULTI", "LOCK.ACQUIRE t5 60000", "LOCK.FORCERELEASE t5"]);
    let done = client.ask(&["EXEC"]);
    assert!(client.receive().contains("\"t5\""), "{done}");

    let kept = grant(&mut client, "LOCK.ACQUIRE kept 60000");
    assert_eq!(client.ask(&words("LOCK.NOTIFY OFF")), "OK");
    assert_eq!(client.ask(&words("LOCK.NOTIFY ON")), "OK");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE kept")), "1");
    assert_eq!(client.receive(), lost("kept", kept, "forced", "nil"));
    let _ = gone;
    assert!(client.hears_nothing_for(QUIET), "what had ended before is not told");

    assert_eq!(client.ask(&["RESET"]), "RESET");
    assert!(client.ask(&["HELLO", "3"]).starts_with('{'));
    grant(&mut client, "LOCK.ACQUIRE r 60000");
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE r")), "1");
    assert!(client.hears_nothing_for(QUIET), "RESET ended it");
}

/// A conversion gives a new fence: the old one is not lost, the new one is watched.
#[test]
fn a_converted_lock_is_watched_under_its_new_fence() {
    let node = node();
    let mut client = notified(&node);
    let mut other = node.connect();
    let shared = grant(&mut client, "LOCK.ACQUIRE c 60000 SHARED");
    let exclusive = fence_of(&client.ask(&["LOCK.CONVERT", "c", &shared.to_string(), "EXCLUSIVE"]));
    assert!(client.hears_nothing_for(QUIET));
    assert_eq!(other.ask(&words("LOCK.FORCERELEASE c")), "1");
    assert_eq!(client.receive(), lost("c", exclusive, "forced", "nil"));
    // It waits to convert when its shared hold is taken away.
    let shared = grant(&mut client, "LOCK.ACQUIRE c 60000 SHARED");
    grant(&mut other, "LOCK.ACQUIRE c 60000 SHARED OWNER other");
    client.send(&["LOCK.CONVERT", "c", &shared.to_string(), "EXCLUSIVE", "WAIT", "60000"]);
    await_that("it waits", || other.ask(&words("LOCK.INFO c")).contains("\"waiters\", 1"));
    assert_eq!(other.ask(&["LOCK.FORCERELEASE", "c", "FENCE", &shared.to_string()]), "1");
    let mut told = [client.receive(), client.receive()];
    told.sort();
    assert_eq!(told, [lost("c", shared, "forced", "nil"), "nil".to_string()]);
}

/// The connection that opened the session has said how long it lives: nobody has to be asked.
#[test]
fn a_lock_of_a_session_is_not_doubted_early() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut client = notified(&nodes[0]);
    let id = session(&mut client, "LOCK.SESSION OPEN 600000");
    // Both leave in one write, and the others stop before anything can be looked up.
    client.send(&words(&format!("LOCK.ACQUIRE s 0 SESSION {id}")));
    let reply = client.receive();
    assert!(fence_of(&reply) > 0);
    cut_off(&nodes);
    let early = client.hears_nothing_for(Duration::from_secs(1));
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    assert!(early, "it was told to doubt the lock long before half of the session's ttl");
    await_that("the cluster serves", || client.ask(&words("LOCK.FORCERELEASE s")) == "1");
}

/// A release that a cut off node refuses leaves the lock held: who asks to be told afterwards is told of its loss.
#[test]
fn a_lock_whose_release_was_refused_is_watched() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut client = resp3(&nodes[0]);
    let fences = ["a", "b", "c"].map(|name| grant(&mut client, &format!("LOCK.ACQUIRE {name} 600000")));
    let [a, b, c] = fences.map(|fence| fence.to_string());
    let mut other = cut_off(&nodes);
    // What follows in the same pipeline counts too.
    client.send(&["LOCK.RELEASE", "a", &a]);
    client.send(&["LOCK.MRELEASE", "2", "b", &b, "c", &c]);
    client.send(&words("LOCK.NOTIFY ON"));
    let answers = [client.receive(), client.receive(), client.receive()];
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    let codes = answers.each_ref().map(|answer| code(answer));
    assert_eq!(codes, ["-UNAVAILABLE", "-UNAVAILABLE", "OK"], "{answers:?}");
    for (name, fence) in ["a", "b", "c"].into_iter().zip(fences) {
        await_that("the cluster serves", || other.ask(&["LOCK.FORCERELEASE", name]) == "1");
        assert_eq!(client.receive(), lost(name, fence, "forced", "nil"));
    }
}

/// Doubt is for all locks of a session that was named, whoever took them, by the lease they have.
#[test]
fn what_others_took_for_a_session_is_doubted() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut other = nodes[1].connect();
    let id = session(&mut other, "LOCK.SESSION OPEN 600000");
    let mut client = resp3(&nodes[0]);
    assert_eq!(client.ask(&["LOCK.NOTIFY", "ON", "SESSION", &id]), "()");
    let long = grant(&mut other, &format!("LOCK.ACQUIRE long 600000 SESSION {id}"));
    let short = grant(&mut other, &format!("LOCK.ACQUIRE short 2000 SESSION {id}"));
    await_that("the node has heard of it", || {
        nodes[0].connect().ask(&words("LOCK.INFO short")).contains(&id)
    });
    nodes[1..].iter().for_each(|node| node.process.signal("STOP"));
    let told = client.receive();
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    assert_eq!(told, format!(">(\"lock-suspect\", \"short\", {short}, \"no_quorum\", nil)"));
    assert_eq!(client.receive(), lost("short", short, "expired", "nil"));
    let mut last = nodes[0].connect();
    await_that("the cluster serves", || last.ask(&words("LOCK.FORCERELEASE long")) == "1");
    assert_eq!(client.receive(), lost("long", long, "forced", "nil"));
}

/// A lock with a time of its own ends with its session all the same.
#[test]
fn doubt_comes_by_the_session_where_that_is_shorter() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut client = notified(&nodes[0]);
    let mut other = nodes[1].connect();
    let own = session(&mut client, "LOCK.SESSION OPEN 8000");
    let foreign = session(&mut other, "LOCK.SESSION OPEN 8000");
    let locks = [("a", &own), ("b", &foreign)]
        .map(|(name, id)| (name, grant(&mut client, &format!("LOCK.ACQUIRE {name} 600000 SESSION {id}"))));
    for (name, fence) in locks {
        let renewed = client.ask(&["LOCK.RENEW", name, &fence.to_string(), "700000"]);
        assert_eq!(renewed, "(1, 700000)");
    }
    nodes[1..].iter().for_each(|node| node.process.signal("STOP"));
    let mut told = [client.receive(), client.receive()];
    told.sort();
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    let suspect = |(name, fence)| format!(">(\"lock-suspect\", \"{name}\", {fence}, \"no_quorum\", nil)");
    assert_eq!(told, locks.map(suspect));
}

/// In one pipeline: a session that is none takes nothing back that was asked for behind it.
#[test]
fn a_refused_session_does_not_undo_what_follows_it() {
    let node = start_cluster(1, &[]).remove(0);
    runs_version_2(&node);
    let mut other = node.connect();
    for again in [
        "LOCK.NOTIFY ON".to_owned(),
        format!("LOCK.NOTIFY ON SESSION {}", session(&mut other, "LOCK.SESSION OPEN 60000")),
    ] {
        let mut client = resp3(&node);
        let fence = grant(&mut client, "LOCK.ACQUIRE x 600000");
        client.send(&words("LOCK.NOTIFY ON SESSION 0123456789abcdef"));
        client.send(&words(&again));
        assert_eq!(code(&client.receive()), "-NOSESSION");
        assert!(!client.receive().starts_with('-'));
        assert_eq!(other.ask(&words("LOCK.FORCERELEASE x")), "1");
        assert_eq!(client.receive(), lost("x", fence, "forced", "nil"));
    }
}

/// Who asks to be told while the node is cut off already is told to doubt what it holds.
#[test]
fn who_asks_during_an_outage_is_told_to_doubt() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut client = resp3(&nodes[0]);
    let fence = grant(&mut client, "LOCK.ACQUIRE x 4000");
    cut_off(&nodes);
    assert_eq!(client.ask(&words("LOCK.NOTIFY ON")), "OK");
    let told = client.receive();
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    assert_eq!(told, format!(">(\"lock-suspect\", \"x\", {fence}, \"no_quorum\", nil)"));
}

/// What the connection itself has released, or converted under another fence, it does not lose, whichever way.
#[test]
fn what_was_released_is_not_doubted() {
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut client = notified(&nodes[0]);
    for name in ["a", "b", "c", "d"] {
        // The end is not seen yet where `OFF` is carried out.
        let fence = grant(&mut client, &format!("LOCK.ACQUIRE {name} 8000"));
        let release = format!("LOCK.RELEASE {name} {fence}");
        assert_eq!(client.pipeline(&[&release, "LOCK.NOTIFY OFF"]), ["(1, \"ok\")", "OK"]);
        assert_eq!(client.ask(&words("LOCK.NOTIFY ON")), "OK");
    }
    assert_eq!(client.ask(&words("LOCK.NOTIFY OFF")), "OK");
    let [first, second] = ["m", "n"].map(|name| grant(&mut client, &format!("LOCK.ACQUIRE {name} 8000")));
    let release = format!("LOCK.MRELEASE 2 m {first} n {second}");
    let answers = client.ask_all(&["MULTI", &release, "EXEC"]);
    assert_eq!(answers[2], "(((1, \"ok\"), (1, \"ok\")))");
    let shared = grant(&mut client, "LOCK.ACQUIRE s 8000 SHARED");
    let exclusive = grant(&mut client, &format!("LOCK.CONVERT s {shared} EXCLUSIVE"));
    assert_eq!(client.ask(&["LOCK.RELEASE", "s", &exclusive.to_string()]), "(1, \"ok\")");
    let held = grant(&mut client, "LOCK.ACQUIRE x 8000");

    cut_off(&nodes);
    assert_eq!(client.ask(&words("LOCK.NOTIFY ON")), "OK");
    let told = client.receive();
    let is_all = client.hears_nothing_for(QUIET);
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    assert_eq!(told, format!(">(\"lock-suspect\", \"x\", {held}, \"no_quorum\", nil)"));
    assert!(is_all);
}

/// What waits for the answers of one client is bounded, whether it reads them or not.
#[test]
fn a_transaction_asks_for_so_many_locks_at_most_while_it_is_told_of_losses() {
    let node = node();
    let mut client = notified(&node);
    let all: Vec<String> = (0..16_385).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut ask = |names: &[&str]| {
        client.ask(&["MULTI"]);
        for names in names.chunks(256) {
            let head = ["LOCK.MACQUIRE".to_owned(), names.len().to_string()];
            let words: Vec<&str> =
                head.iter().map(String::as_str).chain(names.iter().copied()).chain(["60000"]).collect();
            assert_eq!(client.ask(&words), "QUEUED");
        }
        client.ask(&["EXEC"])
    };
    assert_eq!(ask(&names), "-ERR with LOCK.NOTIFY ON a transaction asks for 16384 locks at most");
    assert!(ask(&names[1..]).starts_with("((("), "at the limit");
    assert_eq!(client.ask(&["LOCK.NOTIFY", "OFF"]), "OK");
}

/// A node that is cut off: doubt comes by the lease that counts now, be it renewed or the session's, and RESP2 clients hear of it.
#[test]
fn locks_are_doubted_by_the_lease_they_have() {
    const LEASE_MS: &str = "10000";
    let nodes = start_cluster(3, &[]);
    nodes.iter().for_each(runs_version_2);
    let mut client = notified(&nodes[0]);
    let mut watcher = nodes[0].connect();
    watcher.send(&words("PSUBSCRIBE __lost__:*"));
    watcher.receive();
    let id = session(&mut client, &format!("LOCK.SESSION OPEN {LEASE_MS}"));
    let of_session = grant(&mut client, &format!("LOCK.ACQUIRE s 0 SESSION {id}"));
    // Another lock of the session in another database, and another connection that asks to be told of both.
    let mut elsewhere = nodes[1].connect();
    assert_eq!(elsewhere.ask(&words("SELECT 1")), "OK");
    let in_other = grant(&mut elsewhere, &format!("LOCK.ACQUIRE t 0 SESSION {id}"));
    let mut second = resp3(&nodes[0]);
    let held = second.ask(&["LOCK.NOTIFY", "ON", "SESSION", &id]);
    assert_eq!(held, format!("((\"s\", {of_session}), (\"t\", {in_other}))"));
    assert!(second.hears_nothing_for(QUIET), "both are held");
    let lengthened = grant(&mut client, &format!("LOCK.ACQUIRE long {LEASE_MS}"));
    let shortened = grant(&mut client, "LOCK.ACQUIRE short 600000");
    let renewals = [("long", lengthened, "600000"), ("short", shortened, LEASE_MS)];
    for (name, fence, ttl) in renewals {
        assert_eq!(client.ask(&["LOCK.RENEW", name, &fence.to_string(), ttl]), format!("(1, {ttl})"));
    }
    nodes[1..].iter().for_each(|node| node.process.signal("STOP"));
    let mut told = [client.receive(), client.receive()];
    told.sort();
    let suspect =
        |name: &str, fence: u64| format!(">(\"lock-suspect\", \"{name}\", {fence}, \"no_quorum\", nil)");
    assert_eq!(told, [suspect("s", of_session), suspect("short", shortened)]);
    let mut of_both = [second.receive(), second.receive()];
    of_both.sort();
    assert_eq!(of_both, [suspect("s", of_session), suspect("t", in_other)]);
    let mut heard = [watcher.receive(), watcher.receive(), watcher.receive()];
    heard.sort();
    assert!(heard[0].contains("lock-suspect") && heard[0].contains("__lost__:s\""), "{heard:?}");
    assert!(heard[1].contains("lock-suspect") && heard[1].contains("__lost__:short\""), "{heard:?}");
    assert!(heard[2].contains("lock-suspect") && heard[2].contains("__lost__:t\""), "{heard:?}");
    nodes[1..].iter().for_each(|node| node.process.signal("CONT"));
    await_that("the cluster serves", || client.ask(&words("LOCK.FORCERELEASE long")) == "1");
}
