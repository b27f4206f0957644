//! LOCK.CLUSTER INFO, NODES and VERSION: what a node says of itself and of the others.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::CLUSTER => [
        info_is_a_map,
        nodes_are_listed,
        version_is_a_map,
        an_upgrade_can_be_held_and_finished,
        nonsense_is_an_error,
    ],
}

fn info_is_a_map(context: &Context) {
    let mut client = context.client();
    let reply = ask!(client, "LOCK.CLUSTER", "INFO");
    let pairs = expect::pairs(&reply, context.protocol());
    let fields: Vec<&str> = pairs.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["id", "role", "leader", "term", "commit", "applied", "voters", "quorum"]);
    let number = |field: &str| {
        pairs
            .iter()
            .find(|(name, _)| name == field)
            .map(|(_, value)| value.integer())
            .expect("a field of INFO")
    };
    assert!(number("id") >= 1 && number("leader") >= 1 && number("term") >= 1);
    assert_eq!(number("quorum"), 1);
    assert!(number("applied") <= number("commit"), "{reply:?}");
    assert!(["leader", "follower"].contains(&pairs[1].1.text().as_str()), "{reply:?}");
}

fn nodes_are_listed(context: &Context) {
    let mut client = context.client();
    let reply = ask!(client, "LOCK.CLUSTER", "NODES");
    let nodes = reply.array();
    assert!(!nodes.is_empty());
    let mut leaders = 0;
    for node in nodes {
        let pairs = expect::pairs(node, context.protocol());
        let fields: Vec<&str> = pairs.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["id", "addr", "role", "match", "up"]);
        leaders += usize::from(pairs[2].1 == Value::bulk("leader"));
    }
    assert_eq!(leaders, 1, "{reply:?}");
}

fn version_is_a_map(context: &Context) {
    let mut client = context.client();
    let reply = ask!(client, "LOCK.CLUSTER", "VERSION");
    let pairs = expect::pairs(&reply, context.protocol());
    let fields: Vec<&str> = pairs.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["cluster_version", "node_version", "members", "hold"]);
    assert_eq!(pairs[0].1, Value::Integer(2));
    assert_eq!(pairs[1].1, Value::Integer(2));
    let members: Vec<(i64, i64)> = match &pairs[2].1 {
        Value::Map(pairs) => pairs.iter().map(|(id, version)| (id.integer(), version.integer())).collect(),
        flat => flat.array().chunks_exact(2).map(|pair| (pair[0].integer(), pair[1].integer())).collect(),
    };
    let nodes = ask!(client, "LOCK.CLUSTER", "NODES").array().len();
    assert_eq!(members.len(), nodes, "{reply:?}");
    assert!(members.iter().all(|(id, version)| *id >= 1 && [0, 2].contains(version)), "{reply:?}");
    assert!(matches!(pairs[3].1, Value::Integer(0 | 1)), "{reply:?}");
}

/// The cluster is shared by cases that run at the same time: what it shows in between is theirs too.
fn an_upgrade_can_be_held_and_finished(context: &Context) {
    let mut client = context.client();
    assert_eq!(ask!(client, "LOCK.CLUSTER", "UPGRADE", "HOLD"), Value::Simple("OK".into()));
    assert_eq!(ask!(client, "lock.cluster", "upgrade", "finish"), Value::Simple("OK".into()));
}

fn nonsense_is_an_error(context: &Context) {
    let mut client = context.client();
    expect::error(&ask!(client, "LOCK.CLUSTER"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "NONSENSE"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "ADD", "x", "127.0.0.1:1"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "ADD", 9, "nowhere"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "REMOVE", "x"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "TRANSFER"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "VERSION", "1"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "UPGRADE"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "UPGRADE", "LATER"), "ERR");
}
