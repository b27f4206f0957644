//! Snapshots are cut by bytes: whatever the state holds, no piece is above the limit, and a machine comes back from the pieces.

use redfence_core::keyspace::Resp;
use redfence_core::limits::{KEY_BYTES_MAX, SNAPSHOT_PIECE_BYTES_MAX, STRING_BYTES_MAX, WORD_BYTES_MAX};
use redfence_core::machine::{Applied, Checker, Command, Machine};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, RequestId, Stamp};

struct Node {
    machine: Machine,
    seq: u64,
}

impl Node {
    fn new() -> Node {
        Node { machine: Machine::new(), seq: 0 }
    }

    /// The reply, if there is one at once.
    fn run(&mut self, argv: &[&[u8]]) -> Option<Reply> {
        self.seq += 1;
        let origin = Origin { node: 1, incarnation: 1 };
        let stamp = Stamp { term: 1, logical_ms: self.seq, wall_us: 1_700_000_000_000_000 + self.seq };
        let command =
            Command::Redis { db: 0, resp: Resp::Two, member: None, argv: argv.iter().copied().collect() };
        let mut out = Applied::default();
        self.machine.apply(stamp, Some(RequestId { origin, seq: self.seq }), command, &mut out);
        out.replies.pop().map(|(_, reply)| reply)
    }

    fn ok(&mut self, argv: &[&[u8]]) {
        let reply = self.run(argv);
        assert!(!matches!(reply, Some(Reply::Error(_))), "{reply:?}");
    }
}

/// Takes a snapshot in steps of `slots`, changing the state between steps, and holds it against the state at its beginning.
fn check(node: &mut Node, slots: usize, mut between: impl FnMut(&mut Node, usize)) {
    let before = node.machine.state_hash();
    node.machine.snapshot_begin();
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    while let Some(piece) = node.machine.snapshot_step(slots) {
        assert!(piece.len() <= SNAPSHOT_PIECE_BYTES_MAX, "a piece of {} bytes", piece.len());
        pieces.push(piece);
        between(node, pieces.len());
    }
    let mut checker = Checker::default();
    pieces.iter().for_each(|piece| checker.push(piece).unwrap());
    checker.finish().unwrap();
    assert_eq!(Machine::restore(&pieces).unwrap().state_hash(), before);
}

#[test]
fn many_large_values_make_no_large_piece() {
    let mut node = Node::new();
    let value = vec![b'v'; 60_000];
    for number in 0..1_100 {
        node.ok(&[b"SET", format!("key{number}").as_bytes(), &value]);
    }
    check(&mut node, 2_048, |_, _| {});
    // Values that go before the walk has reached them are saved, and must be cut as well.
    check(&mut node, 64, |node, step| {
        for number in (step * 40)..(step * 40 + 40) {
            node.run(&[b"DEL", format!("key{}", 1_100_usize.saturating_sub(number)).as_bytes()]);
        }
    });
}

#[test]
fn the_longest_names_and_values_come_back() {
    let mut node = Node::new();
    let word = vec![b'v'; WORD_BYTES_MAX];
    for number in 0..5_u8 {
        let mut name = vec![b'n'; KEY_BYTES_MAX];
        name[0] = number;
        for part in 0..STRING_BYTES_MAX / WORD_BYTES_MAX {
            let offset = (part * WORD_BYTES_MAX).to_string();
            node.ok(&[b"SETRANGE", &name, offset.as_bytes(), &word]);
        }
        assert_eq!(node.run(&[b"STRLEN", &name]), Some(Reply::Int(STRING_BYTES_MAX as i64)));
    }
    for slots in [1, 100] {
        check(&mut node, slots, |_, _| {});
    }
}

#[test]
fn a_large_collection_is_split_across_pieces() {
    for command in ["RPUSH", "SADD", "HSET", "ZADD"] {
        let mut node = Node::new();
        for number in 0..200_u32 {
            let mut element = vec![b'e'; 60_000];
            element[..4].copy_from_slice(&number.to_be_bytes());
            let score = number.to_string();
            match command {
                "HSET" => node.ok(&[b"HSET", b"big", score.as_bytes(), &element]),
                "ZADD" => node.ok(&[b"ZADD", b"big", score.as_bytes(), &element]),
                _ => node.ok(&[command.as_bytes(), b"big", &element]),
            }
        }
        check(&mut node, 2_048, |_, _| {});
        // Changed and deleted while it is being written.
        check(&mut node, 3, |node, step| match step {
            5 => node.ok(&[command.as_bytes(), b"big", b"0", b"late"]),
            9 => node.ok(&[b"DEL", b"big"]),
            _ => {}
        });
    }
}

#[test]
fn remembered_replies_and_blocked_clients_are_cut_too() {
    let mut node = Node::new();
    node.ok(&[b"SET", b"some", &[b'v'; 15_000]]);
    for _ in 0..300 {
        node.ok(&[b"GETEX", b"some"]);
    }
    let name = vec![b'q'; 60_000];
    for number in 0..20_u8 {
        let names: Vec<Vec<u8>> = (0..40_u8).map(|part| [&[number, part], &name[..]].concat()).collect();
        let mut argv: Vec<&[u8]> = vec![b"BLPOP"];
        argv.extend(names.iter().map(|name| &name[..]));
        argv.push(b"0");
        assert_eq!(node.run(&argv), None, "it waits");
    }
    check(&mut node, 2_048, |_, _| {});
    check(&mut node, 2, |node, step| {
        if step == 3 {
            node.ok(&[b"RPUSH", &[&[7, 7], &name[..]].concat(), b"item"]);
        }
    });
}
