//! Commands that wait for company: what that saves, and that nobody is kept waiting by it.

use super::*;
use crate::node_api::{Input, Now, Outputs, SnapshotMeta, Submit, Ticket};
use crate::storage::memory::{MemoryDisk, MemoryStore};
use crate::storage::LogStore;
use crate::tier2::node::Node;
use crate::tier2::requests::encoded;

/// A node that leads nobody but itself, on a clock that the test moves.
struct Alone {
    node: Node,
    store: MemoryStore,
    now_us: u64,
    next_ticket: Ticket,
    wake_at_us: u64,
}

impl Alone {
    fn start() -> Alone {
        let disk = MemoryDisk::new(SnapshotMeta::founding(&[(1, "a:1".to_owned())]));
        let store = disk.open().expect("a fresh disk opens");
        let node =
            Node::new(NodeConfig::new(1, 1), store.recovered(), store.reader()).expect("a fresh node starts");
        let mut alone = Alone { node, store, now_us: 1_000_000, next_ticket: 1, wake_at_us: 0 };
        // Its first entries: of its term, and of its start.
        while alone.node.applied_index() < 3 {
            alone.pass(1_000);
        }
        alone.pass(100_000);
        alone
    }

    fn now(&self) -> Now {
        Now { monotonic_us: self.now_us, wall_us: 1_790_000_000_000_000 + self.now_us }
    }

    /// Lets time pass; answers how many clients were answered.
    fn pass(&mut self, us: u64) -> usize {
        self.now_us += us;
        self.turns()
    }

    /// So many clients ask at this moment; answers how many are answered at once.
    fn ask(&mut self, clients: u64) -> usize {
        for _ in 0..clients {
            let name = format!("r{}", self.next_ticket);
            let blob = encoded(&acquire(&name, "me", 60_000, 0));
            let submit =
                Submit { ticket: self.next_ticket, connection: 0, blob, timeout_ms: 5_000, wait_ms: 0 };
            self.node.input(self.now(), Input::Submit(submit));
            self.next_ticket += 1;
        }
        self.turns()
    }

    fn turns(&mut self) -> usize {
        let mut out = Outputs::default();
        let mut answered = 0;
        loop {
            out.clear();
            self.node.turn(self.now(), &mut out);
            answered += out.replies.len();
            self.wake_at_us = out.wake_at_us;
            let Some(number) = out.persist.last().map(|task| task.number) else { return answered };
            self.store.write(&out.persist).expect("memory takes it");
            self.node.input(self.now(), Input::Persisted { number });
        }
    }
}

#[test]
fn clients_answered_together_share_their_next_entry() {
    let mut alone = Alone::start();
    assert_eq!(alone.ask(2), 2);
    let index = alone.node.applied_index();
    alone.now_us += 50;
    assert_eq!(alone.ask(1), 0, "the other is waited for");
    assert!(alone.wake_at_us <= alone.now_us + 300, "not for long");
    alone.now_us += 50;
    assert_eq!(alone.ask(1), 2);
    assert_eq!(alone.node.applied_index(), index + 1, "in one entry");
}

/// A report of digests comes a few times a second: clients that hand a lock over to each other must not fall out of step by it.
#[test]
fn what_nobody_waits_for_does_not_count_as_a_client_that_came() {
    let mut alone = Alone::start();
    assert_eq!(alone.ask(2), 2);
    for round in 0..20 {
        let index = alone.node.applied_index();
        alone.now_us += 50;
        alone.node.stage.push_unnumbered(encoded(&Command::Expire { idle_ms: 600_000 }));
        assert_eq!(alone.ask(1), 0, "round {round}: the other is waited for");
        alone.now_us += 50;
        assert_eq!(alone.ask(1), 2, "round {round}");
        assert_eq!(alone.node.applied_index(), index + 1, "round {round}: in one entry");
    }
}

#[test]
fn a_client_alone_is_never_held_up() {
    let mut alone = Alone::start();
    for _ in 0..20 {
        assert_eq!(alone.ask(1), 1);
        alone.now_us += 20;
    }
}

#[test]
fn clients_that_do_not_come_again_are_waited_for_ever_less_often() {
    let mut alone = Alone::start();
    let mut held_up = 0;
    for _ in 0..1_000 {
        assert_eq!(alone.ask(2), 2);
        alone.now_us += 50;
        if alone.ask(1) == 0 {
            held_up += 1;
            let left_us = alone.wake_at_us - alone.now_us;
            assert!(left_us < 250, "{left_us} us are left");
            assert_eq!(alone.pass(left_us), 1, "it leaves when the time is over");
        }
        // All that was expected has gone by.
        alone.now_us += 10_000;
    }
    assert!((1..=8).contains(&held_up), "{held_up} of 1000 were held up");
}
