//! COMMAND INFO and COMMAND DOCS know every command; INFO has a section of ours.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::client::Client;
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::COMMAND_TABLE => [
        command_info_knows_every_command,
        command_info_tells_where_the_keys_are,
        command_docs_has_a_summary,
        command_docs_knows_what_command_list_names,
        unknown_commands_are_nil,
        info_has_a_section,
        info_counts_grants_and_releases,
    ],
}

/// Name, arity, and the position of the first key (0 where Redis cannot be told by position alone).
const COMMANDS: [(&str, i64, i64); 13] = [
    ("lock.acquire", -3, 1),
    ("lock.release", -3, 1),
    ("lock.renew", -4, 1),
    ("lock.info", -2, 1),
    ("lock.macquire", -4, 0),
    ("lock.mrelease", -4, 0),
    ("lock.queue", -2, 1),
    ("lock.scan", -2, 0),
    ("lock.session", -3, 0),
    ("lock.forcerelease", -2, 1),
    ("fence.check", 3, 1),
    ("fence.get", 2, 1),
    ("fence.call", -4, 1),
];

fn command_info_knows_every_command(context: &Context) {
    let mut client = context.client();
    for (name, arity, _) in COMMANDS {
        let reply = ask!(client, "COMMAND", "INFO", name.to_ascii_uppercase());
        let entry = reply.array()[0].array();
        assert_eq!(entry[0].text(), name);
        assert_eq!(entry[1].integer(), arity, "arity of {name}");
    }
}

fn command_info_tells_where_the_keys_are(context: &Context) {
    let mut client = context.client();
    for (name, _, first_key) in COMMANDS.into_iter().filter(|(_, _, first_key)| *first_key > 0) {
        let reply = ask!(client, "COMMAND", "INFO", name);
        assert_eq!(reply.array()[0].array()[3].integer(), first_key, "first key of {name}");
    }
    let keys = ask!(client, "COMMAND", "GETKEYS", "LOCK.ACQUIRE", "name", 1_000);
    assert_eq!(keys, Value::Array(vec![Value::bulk("name")]));
}

fn command_docs_has_a_summary(context: &Context) {
    let mut client = context.client();
    for (name, _, _) in COMMANDS {
        let reply = ask!(client, "COMMAND", "DOCS", name);
        let docs = expect::pairs(&reply, context.protocol());
        assert_eq!(docs.len(), 1, "{name}: {reply:?}");
        assert_eq!(docs[0].0, name);
        let fields = expect::pairs(&docs[0].1, context.protocol());
        let summary = fields.iter().find(|(field, _)| field == "summary");
        assert!(
            summary.is_some_and(|(_, text)| !text.bytes().is_empty()),
            "{name} has no summary: {reply:?}"
        );
    }
}

fn command_docs_knows_what_command_list_names(context: &Context) {
    let mut client = context.client();
    let names = ask!(client, "COMMAND", "LIST");
    for name in names.array() {
        let reply = ask!(client, "COMMAND", "DOCS", name.bytes());
        let docs = expect::pairs(&reply, context.protocol());
        assert_eq!(docs.len(), 1, "{name:?}: {reply:?}");
    }
}

fn unknown_commands_are_nil(context: &Context) {
    let mut client = context.client();
    let reply = ask!(client, "COMMAND", "INFO", "lock.nonsense");
    assert!(matches!(reply.array(), [Value::NullArray | Value::Null | Value::NullBulk]), "{reply:?}");
}

fn section(client: &mut Client) -> String {
    match ask!(client, "INFO", "redfence") {
        Value::Bulk(bytes) => String::from_utf8(bytes).unwrap(),
        // RESP3 puts a format before the text: `txt:`.
        Value::Verbatim(bytes) => String::from_utf8(bytes).unwrap().split_off(4),
        other => panic!("INFO answered {other:?}"),
    }
}

/// The number in the first field whose name contains `part`.
fn field(text: &str, part: &str) -> f64 {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.contains(part))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or_else(|| panic!("no number for '{part}' in:\n{text}"))
}

fn info_has_a_section(context: &Context) {
    let mut client = context.client();
    let text = section(&mut client);
    let title = text.lines().find(|line| line.starts_with('#')).unwrap_or_default().to_ascii_lowercase();
    assert!(title.contains("redfence"), "no section of ours:\n{text}");
    for part in ["held", "waiters", "grants", "releases", "expiries", "refusals"] {
        field(&text, part);
    }
    assert!(text.contains("latency"), "no latency in:\n{text}");
}

fn info_counts_grants_and_releases(context: &Context) {
    let mut client = context.client();
    let before = section(&mut client);
    let name = context.name("lock");
    for _ in 0..3 {
        let grant = client.acquire(&name, 30_000);
        client.is_refused(&name, 1_000);
        client.release(&name, grant.fence);
    }
    let after = section(&mut client);
    for part in ["grants", "releases", "refusals"] {
        // Other cases use the same server, so it may have counted more.
        assert!(field(&after, part) >= field(&before, part) + 3.0, "{part}:\n{before}\n{after}");
    }
}
