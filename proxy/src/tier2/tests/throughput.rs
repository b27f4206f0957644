//! What one node's own thinking costs, without disk, network and threads. Run by hand, in release:
//! `cargo test --release -p redfence --lib node_alone -- --ignored --nocapture`.

use super::*;
use crate::clock::Clock;
use crate::node_api::{Input, Now, Outputs, SnapshotMeta, Submit};
use crate::storage::memory::MemoryDisk;
use crate::storage::LogStore;
use crate::tier2::node::Node;
use crate::tier2::requests::encoded;

const OPERATIONS: u64 = 400_000;

fn run(per_turn: u64) -> f64 {
    let disk = MemoryDisk::new(SnapshotMeta::founding(&[(1, "a:1".to_owned())]));
    let mut store = disk.open().expect("a fresh disk opens");
    let mut node =
        Node::new(NodeConfig::new(1, 1), store.recovered(), store.reader()).expect("a fresh node starts");
    let clock = Clock::start();
    let (mut asked, mut answered) = (0, 0);
    let mut out = Outputs::default();
    while answered < OPERATIONS {
        let now = Now { monotonic_us: clock.monotonic_us(), wall_us: 1_790_000_000_000_000 + asked };
        for _ in 0..per_turn.min(OPERATIONS - asked) {
            let (name, owner) = (format!("resource-{}", asked % 50_000), format!("owner-{asked}"));
            let blob = encoded(&acquire(&name, &owner, 60_000, 0));
            node.input(
                now,
                Input::Submit(Submit { ticket: asked, connection: 0, blob, timeout_ms: 5_000, wait_ms: 0 }),
            );
            asked += 1;
        }
        out.clear();
        node.turn(now, &mut out);
        answered += out.replies.len() as u64;
        if let Some(number) = out.persist.last().map(|task| task.number) {
            store.write(&out.persist).expect("memory takes it");
            node.input(now, Input::Persisted { number });
        }
        for report in out.snapshot_ops.drain(..).filter_map(|op| disk.carry_out(op)).collect::<Vec<_>>() {
            node.input(now, report);
        }
    }
    OPERATIONS as f64 / (clock.monotonic_ms().max(1) as f64 / 1_000.0)
}

#[test]
#[ignore = "measures; run by hand in release"]
fn node_alone() {
    for per_turn in [1, 8, 64, 512] {
        println!("{per_turn} commands a turn: {:.0} operations a second", run(per_turn));
    }
}
