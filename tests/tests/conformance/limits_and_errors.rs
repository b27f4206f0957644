//! Every limit of `docs/commands` hit, one more, and nonsense in its place: a clear error, state unchanged,
//! the connection alive.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::{ask, expect, words};

use crate::topic::cases;

cases! {
    Abilities::NONE => [
        resource_name_length,
        owner_length,
        ttl_range,
        renew_ttl_range,
        wait_range,
        fence_range,
        multi_count_range,
        multi_count_must_match,
        multi_names_have_the_same_limits,
        scan_cursor_and_count,
        wrong_number_of_arguments,
        unknown_options,
        options_given_twice,
        options_without_a_value,
        nonsense_in_a_pipeline_costs_only_its_own_reply,
        an_error_leaves_a_held_lock_alone,
    ],
    Abilities::CORRECTNESS => [session_ttl_and_label_range, unknown_session_words],
    Abilities::FENCING => [fence_commands_have_the_same_limits],
    Abilities::WIRE => [unknown_command_costs_only_its_own_reply, half_a_frame_then_the_rest, empty_bulk_as_name],
    Abilities::FRAME_LIMITS => [a_bulk_string_too_long_is_refused, an_array_too_long_is_refused],
}

/// What no number of the grammar may look like.
const NO_NUMBERS: [&str; 12] =
    ["", " ", "abc", "1.5", "1e3", " 5", "5 ", "+5", "0x10", "-1", "18446744073709551616", "5\r\n"];

const TTL_MS_MAX: u64 = 31_536_000_000;
const WAIT_MS_MAX: u64 = 3_600_000;
const FENCE_MAX: i64 = (1 << 53) - 1;

/// The command is refused with the limit in the text, the lock is as before, and the connection lives.
#[track_caller]
fn refused(client: &mut Client, name: &str, command: &[Vec<u8>], limit: &str) {
    let reply = client.ask(command);
    expect::error_naming(&reply, "ERR", limit);
    let info = client.info(name);
    assert_eq!((info.state.as_str(), info.fence, info.waiters), ("free", 0, 0), "nothing happened");
}

fn resource_name_length(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let longest = format!("{name}{}", "x".repeat(512 - name.len()));
    let grant = client.acquire(&longest, 30_000);
    assert_eq!(client.info(&longest).fence, grant.fence);
    client.release(&longest, grant.fence);
    for wrong in [String::new(), format!("{longest}y"), "z".repeat(5_000)] {
        let commands = [
            words!["LOCK.ACQUIRE", &wrong, 30_000].to_vec(),
            words!["LOCK.RELEASE", &wrong, 7].to_vec(),
            words!["LOCK.RENEW", &wrong, 7, 1_000].to_vec(),
            words!["LOCK.INFO", &wrong].to_vec(),
            words!["LOCK.QUEUE", &wrong].to_vec(),
            words!["LOCK.FORCERELEASE", &wrong].to_vec(),
        ];
        for command in commands {
            refused(&mut client, &name, &command, "512");
        }
    }
    // One byte is enough, but its name is everybody's: it is only looked at.
    expect::info(&ask!(client, "LOCK.INFO", "a"), context.protocol());
}

fn owner_length(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for wrong in [String::new(), "o".repeat(257), "o".repeat(5_000)] {
        refused(&mut client, &name, &words!["LOCK.ACQUIRE", &name, 30_000, "OWNER", &wrong], "256");
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", 1, &name, 30_000, "OWNER", &wrong], "256");
    }
    for right in ["o".repeat(256), "o".to_owned()] {
        let grant = client.acquire_as(&name, 30_000, &right);
        assert_eq!(client.info(&name).owner.as_deref(), Some(right.as_str()));
        client.release(&name, grant.fence);
    }
}

fn ttl_range(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let limit = TTL_MS_MAX.to_string();
    let beyond = ["0".to_owned(), (TTL_MS_MAX + 1).to_string(), u64::MAX.to_string(), i64::MIN.to_string()];
    for wrong in beyond.iter().map(String::as_str).chain(NO_NUMBERS) {
        refused(&mut client, &name, &words!["LOCK.ACQUIRE", &name, wrong], &limit);
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", 1, &name, wrong], &limit);
    }
    let grant = client.acquire(&name, TTL_MS_MAX);
    client.release(&name, grant.fence);
    // It may have ended before a busy node could tell it.
    let reply = ask!(client, "LOCK.ACQUIRE", &name, 1);
    assert!(reply == context.protocol().nil() || expect::granted(&reply).ttl_ms == 1, "{reply:?}");
    client.await_free(&name);
    assert!(client.info(&name).fence > grant.fence, "it was granted");
}

fn renew_ttl_range(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire(&name, 30_000);
    let beyond = ["0".to_owned(), (TTL_MS_MAX + 1).to_string()];
    for wrong in beyond.iter().map(String::as_str).chain(NO_NUMBERS) {
        let reply = ask!(client, "LOCK.RENEW", &name, grant.fence, wrong);
        expect::error_naming(&reply, "ERR", &TTL_MS_MAX.to_string());
        assert!(client.info(&name).ttl_ms.unwrap() <= 30_000);
    }
    for ttl_ms in [TTL_MS_MAX, 30_000] {
        expect::ttl_told(client.renew(&name, grant.fence, ttl_ms), ttl_ms);
    }
}

fn wait_range(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let limit = WAIT_MS_MAX.to_string();
    let beyond = [(WAIT_MS_MAX + 1).to_string(), u64::MAX.to_string()];
    for wrong in beyond.iter().map(String::as_str).chain(NO_NUMBERS) {
        refused(&mut client, &name, &words!["LOCK.ACQUIRE", &name, 30_000, "WAIT", wrong], &limit);
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", 1, &name, 30_000, "WAIT", wrong], &limit);
    }
    let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "WAIT", WAIT_MS_MAX));
    client.release(&name, grant.fence);
    expect::granted(&ask!(client, "LOCK.ACQUIRE", &name, 30_000, "WAIT", 0));
}

fn fence_range(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let limit = FENCE_MAX.to_string();
    let beyond = ["0".to_owned(), (FENCE_MAX + 1).to_string(), u64::MAX.to_string()];
    for wrong in beyond.iter().map(String::as_str).chain(NO_NUMBERS) {
        refused(&mut client, &name, &words!["LOCK.RELEASE", &name, wrong], &limit);
        refused(&mut client, &name, &words!["LOCK.RENEW", &name, wrong, 1_000], &limit);
        refused(&mut client, &name, &words!["LOCK.MRELEASE", 1, &name, wrong], &limit);
    }
    client.release_is_refused(&name, FENCE_MAX, "not_owner");
    client.release_is_refused(&name, 1, "not_owner");
}

fn multi_count_range(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for wrong in ["0", "257", "1000000"].into_iter().chain(NO_NUMBERS) {
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", wrong, &name, 30_000], "256");
        refused(&mut client, &name, &words!["LOCK.MRELEASE", wrong, &name, 7], "256");
    }
    let mut command = words!["LOCK.MACQUIRE", 257].to_vec();
    command.extend((0..257).map(|number| format!("{{{name}}}{number}").into_bytes()));
    command.extend(words![30_000]);
    refused(&mut client, &name, &command, "256");
}

fn multi_count_must_match(context: &Context) {
    let mut client = context.client();
    let (name, other) = (context.name("lock"), context.name("other"));
    let commands = [
        words!["LOCK.MACQUIRE", 3, &name, &other, 30_000].to_vec(),
        words!["LOCK.MACQUIRE", 2, &name, 30_000].to_vec(),
        words!["LOCK.MACQUIRE", 1, &name, &other, 30_000].to_vec(),
        words!["LOCK.MRELEASE", 2, &name, 7].to_vec(),
        words!["LOCK.MRELEASE", 2, &name, 7, &other].to_vec(),
        words!["LOCK.MRELEASE", 1, &name, 7, &other, 7].to_vec(),
    ];
    for command in commands {
        refused(&mut client, &name, &command, "");
        assert_eq!(client.info(&other).fence, 0);
    }
}

fn multi_names_have_the_same_limits(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for wrong in [String::new(), "x".repeat(513)] {
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", 2, &name, &wrong, 30_000], "512");
        refused(&mut client, &name, &words!["LOCK.MRELEASE", 2, &name, 7, &wrong, 7], "512");
    }
}

fn scan_cursor_and_count(context: &Context) {
    let mut client = context.client();
    for wrong in NO_NUMBERS {
        expect::error(&ask!(client, "LOCK.SCAN", wrong), "ERR");
        expect::error(&ask!(client, "LOCK.SCAN", 0, "COUNT", wrong), "ERR");
    }
    expect::error(&ask!(client, "LOCK.SCAN", 0, "COUNT", 0), "ERR");
    expect::error(&ask!(client, "LOCK.SCAN", 0, "LIKE", "x"), "ERR");
    expect::error(&ask!(client, "LOCK.SCAN", 0, "MATCH"), "ERR");
    expect::error(&ask!(client, "LOCK.SCAN", 0, "MATCH", "a", "MATCH", "b"), "ERR");
    expect::scanned(&ask!(client, "LOCK.SCAN", 0, "COUNT", 1));
    // As for `SCAN`, any positive number.
    for many in ["10001", "9223372036854775807"] {
        expect::scanned(&ask!(client, "LOCK.SCAN", 0, "COUNT", many));
    }
    expect::error(&ask!(client, "LOCK.SCAN", 0, "COUNT", "9223372036854775808"), "ERR");
}

fn wrong_number_of_arguments(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let commands = [
        words!["LOCK.ACQUIRE"].to_vec(),
        words!["LOCK.ACQUIRE", &name].to_vec(),
        words!["LOCK.RELEASE"].to_vec(),
        words!["LOCK.RELEASE", &name].to_vec(),
        words!["LOCK.RENEW", &name].to_vec(),
        words!["LOCK.RENEW", &name, 7].to_vec(),
        words!["LOCK.INFO"].to_vec(),
        words!["LOCK.QUEUE"].to_vec(),
        words!["LOCK.SCAN"].to_vec(),
        words!["LOCK.MACQUIRE"].to_vec(),
        words!["LOCK.MACQUIRE", 1].to_vec(),
        words!["LOCK.MACQUIRE", 1, &name].to_vec(),
        words!["LOCK.MRELEASE"].to_vec(),
        words!["LOCK.MRELEASE", 1, &name].to_vec(),
        words!["LOCK.FORCERELEASE"].to_vec(),
    ];
    for command in commands {
        let verb = String::from_utf8_lossy(&command[0]).to_ascii_lowercase();
        let reply = client.ask(&command);
        let text = expect::error(&reply, "ERR");
        assert_eq!(text, format!("wrong number of arguments for '{verb}' command"), "as Redis says it");
    }
    assert_eq!(client.info(&name).fence, 0);
}

fn unknown_options(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for option in ["NX", "PX", "", "WAI", "OWNERS", "WAIT\0"] {
        refused(&mut client, &name, &words!["LOCK.ACQUIRE", &name, 30_000, option, 5], "");
        refused(&mut client, &name, &words!["LOCK.ACQUIRE", &name, 30_000, option], "");
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", 1, &name, 30_000, option, 5], "");
        refused(&mut client, &name, &words!["LOCK.RELEASE", &name, 7, option, 5], "");
        refused(&mut client, &name, &words!["LOCK.RENEW", &name, 7, 5, option, 5], "");
        refused(&mut client, &name, &words!["LOCK.INFO", &name, option], "");
        refused(&mut client, &name, &words!["LOCK.QUEUE", &name, option], "");
        refused(&mut client, &name, &words!["LOCK.FORCERELEASE", &name, option], "");
    }
    // Options of other commands are none of these.
    refused(&mut client, &name, &words!["LOCK.RELEASE", &name, 7, "OWNER", "me"], "");
    refused(&mut client, &name, &words!["LOCK.RENEW", &name, 7, 5, "WAIT", 5], "");
}

fn options_given_twice(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let tier = context.tier();
    for (option, value) in [("WAIT", "5"), ("OWNER", "me"), ("TIER", tier)] {
        let lower = option.to_ascii_lowercase();
        let command = words!["LOCK.ACQUIRE", &name, 30_000, option, value, &lower, value];
        refused(&mut client, &name, &command, "");
        let command = words!["LOCK.MACQUIRE", 1, &name, 30_000, option, value, option, value];
        refused(&mut client, &name, &command, "");
    }
    refused(&mut client, &name, &words!["LOCK.RELEASE", &name, 7, "TIER", tier, "TIER", tier], "");
}

fn options_without_a_value(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    for option in ["WAIT", "OWNER", "TIER"] {
        refused(&mut client, &name, &words!["LOCK.ACQUIRE", &name, 30_000, option], "");
        refused(&mut client, &name, &words!["LOCK.MACQUIRE", 1, &name, 30_000, option], "");
    }
    refused(&mut client, &name, &words!["LOCK.RELEASE", &name, 7, "TIER"], "");
    refused(&mut client, &name, &words!["LOCK.INFO", &name, "TIER"], "");
}

fn nonsense_in_a_pipeline_costs_only_its_own_reply(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    client.send(&words!["LOCK.ACQUIRE", &name, "nonsense"]);
    client.send(&words!["LOCK.ACQUIRE", &name, 30_000, "OWNER", "me"]);
    client.send(&words!["LOCK.RELEASE", &name, "nonsense"]);
    client.send(&words!["LOCK.INFO", &name]);
    expect::error(&client.receive(), "ERR");
    let grant = client.receive_grant();
    expect::error(&client.receive(), "ERR");
    assert_eq!(expect::info(&client.receive(), context.protocol()).fence, grant.fence);
}

fn an_error_leaves_a_held_lock_alone(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let grant = client.acquire_as(&name, 30_000, "me");
    expect::error(&ask!(client, "LOCK.RELEASE", &name, grant.fence, "NOW"), "ERR");
    expect::error(&ask!(client, "LOCK.ACQUIRE", &name, 90_000, "OWNER", "me", "WAIT", "x"), "ERR");
    expect::error(&ask!(client, "LOCK.FORCERELEASE", &name, "NOW"), "ERR");
    let info = client.info(&name);
    assert_eq!((info.fence, info.owner.as_deref()), (grant.fence, Some("me")));
    assert!(info.ttl_ms.unwrap() <= 30_000);
}

fn session_ttl_and_label_range(context: &Context) {
    let mut client = context.client();
    let beyond = ["0".to_owned(), (TTL_MS_MAX + 1).to_string()];
    for wrong in beyond.iter().map(String::as_str).chain(NO_NUMBERS) {
        expect::error_naming(&ask!(client, "LOCK.SESSION", "OPEN", wrong), "ERR", &TTL_MS_MAX.to_string());
    }
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN", 10_000, "NAME", ""), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN", 10_000, "NAME", "x".repeat(257)), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN", 10_000, "NAME"), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN", 10_000, "LABEL", "x"), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN", 10_000, "NAME", "x", "NAME", "x"), "ERR");
    let id = ask!(client, "LOCK.SESSION", "OPEN", 10_000, "NAME", "x".repeat(256)).text();
    ask!(client, "LOCK.SESSION", "CLOSE", &id).integer();
}

fn unknown_session_words(context: &Context) {
    let mut client = context.client();
    expect::error(&ask!(client, "LOCK.SESSION"), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "OPEN"), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "SHUT", "x"), "ERR");
    expect::error(&ask!(client, "LOCK.SESSION", "CLOSE"), "ERR");
    for id in ["", "x", "00000000000000aa", "000000000000000000aa"] {
        expect::error(&ask!(client, "LOCK.SESSION", "KEEPALIVE", id), "NOSESSION");
        expect::error(&ask!(client, "LOCK.SESSION", "INFO", id), "NOSESSION");
        expect::error(&ask!(client, "LOCK.SESSION", "CLOSE", id), "NOSESSION");
    }
}

fn fence_commands_have_the_same_limits(context: &Context) {
    let mut client = context.client();
    let name = context.name("mark");
    let limit = FENCE_MAX.to_string();
    let beyond = ["0".to_owned(), (FENCE_MAX + 1).to_string()];
    for wrong in beyond.iter().map(String::as_str).chain(NO_NUMBERS) {
        expect::error_naming(&ask!(client, "FENCE.CHECK", &name, wrong), "ERR", &limit);
        expect::error_naming(&ask!(client, "FENCE.CALL", &name, wrong, "GET", &name), "ERR", &limit);
    }
    for wrong in [String::new(), "x".repeat(513)] {
        expect::error_naming(&ask!(client, "FENCE.CHECK", &wrong, 7), "ERR", "512");
        expect::error_naming(&ask!(client, "FENCE.GET", &wrong), "ERR", "512");
    }
    expect::error(&ask!(client, "FENCE.CHECK", &name), "ERR");
    expect::error(&ask!(client, "FENCE.GET"), "ERR");
    expect::error(&ask!(client, "FENCE.CALL", &name, 7), "ERR");
    assert_eq!(ask!(client, "FENCE.GET", &name).integer(), 0, "nothing was raised");
}

fn unknown_command_costs_only_its_own_reply(context: &Context) {
    let mut client = context.client();
    expect::error(&ask!(client, "LOCK.NONSENSE", "a"), "ERR");
    expect::error(&ask!(client, "FENCE.NONSENSE"), "ERR");
    client.acquire(&context.name("lock"), 1_000);
}

fn half_a_frame_then_the_rest(context: &Context) {
    let mut client = context.client();
    let name = context.name("lock");
    let frame = redfence_tests::resp::encode(&words!["LOCK.ACQUIRE", &name, 30_000]);
    for byte in &frame {
        client.send_raw(std::slice::from_ref(byte));
    }
    client.receive_grant();
}

fn empty_bulk_as_name(context: &Context) {
    let mut client = context.client();
    client.send_raw(b"*3\r\n$12\r\nLOCK.ACQUIRE\r\n$0\r\n\r\n$4\r\n1000\r\n");
    expect::error_naming(&client.receive(), "ERR", "512");
}

fn a_bulk_string_too_long_is_refused(context: &Context) {
    let mut client = context.client();
    let reply = ask!(client, "LOCK.ACQUIRE", "x".repeat(64 * 1024 + 1), 1_000);
    expect::error(&reply, "ERR");
    context.client().acquire(&context.name("lock"), 1_000);
}

fn an_array_too_long_is_refused(context: &Context) {
    let mut client = context.client();
    let mut command = words!["LOCK.ACQUIRE"].to_vec();
    command.resize(1_025, b"x".to_vec());
    expect::error(&client.ask(&command), "ERR");
    context.client().acquire(&context.name("lock"), 1_000);
}
