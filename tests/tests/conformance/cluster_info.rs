//! LOCK.CLUSTER INFO and NODES: what a node says of itself and of the others.

use redfence_tests::backend::{Abilities, Context};
use redfence_tests::resp::Value;
use redfence_tests::{ask, expect};

use crate::topic::cases;

cases! {
    Abilities::CLUSTER => [info_is_a_map, nodes_are_listed, nonsense_is_an_error],
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

fn nonsense_is_an_error(context: &Context) {
    let mut client = context.client();
    expect::error(&ask!(client, "LOCK.CLUSTER"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "NONSENSE"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "ADD", "x", "127.0.0.1:1"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "ADD", 9, "nowhere"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "REMOVE", "x"), "ERR");
    expect::error(&ask!(client, "LOCK.CLUSTER", "TRANSFER"), "ERR");
}
