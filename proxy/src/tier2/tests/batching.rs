//! Commands that wait for company, and the word of a commit that waits for an entry: what they save, and that nobody is kept waiting by it.

use super::*;
use crate::node_api::{Input, Now, Outputs, OwnedQuery, SnapshotMeta, Submit};
use crate::storage::memory::{MemoryDisk, MemoryStore};
use crate::storage::LogStore;
use crate::tier2::node::Node;
use crate::tier2::requests::encoded;
use bytes::Bytes;

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

/// Heartbeats carry the word, too.
fn rare_heartbeats(config: &mut NodeConfig) {
    config.heartbeat_ticks = config.election_ticks - 1;
}

fn late_word(config: &mut NodeConfig) {
    rare_heartbeats(config);
    config.commit_broadcast_us = 60_000_000;
}

/// Even if the word never went alone: whoever waits for an answer on another node has it at once.
#[test]
fn answers_and_reads_on_other_nodes_do_not_wait_for_a_late_word() {
    for seed in 0..20 {
        let mut cluster = settled_with(3, seed, late_word);
        let (leader, follower) = (leader(&cluster), follower(&cluster));
        let fence = take(&mut cluster, leader, "r", "a", 60_000);
        let query = OwnedQuery::Info { db: 0, resource: Bytes::from_static(b"r") };
        let ticket = cluster.read(follower, query);
        match cluster.wait_for(ticket, 60) {
            Reply::Info(info) => assert_eq!((info.held, info.fence), (true, fence), "seed {seed}"),
            other => panic!("seed {seed}: not an info: {other:?}"),
        }
        let waiting = wait_in_line(&mut cluster, follower, "r", "b", 30_000);
        cluster.run_for(200);
        let ticket = cluster.submit(leader, &release("r", fence), 0);
        assert_eq!(cluster.wait_for(ticket, 60), Reply::Released);
        granted(&cluster.wait_for(waiting, 60));
        let ticket = cluster.submit(follower, &acquire("other", "c", 60_000, 0), 0);
        granted(&cluster.wait_for(ticket, 60));
    }
}

#[test]
fn followers_hear_of_a_commit_soon_though_nobody_waits_there() {
    for seed in 0..20 {
        let mut cluster = settled_with(3, seed, rare_heartbeats);
        let leader = leader(&cluster);
        take(&mut cluster, leader, "r", "a", 60_000);
        let index = cluster.node(leader).map(Node::applied_index);
        let all = |cluster: &SimCluster| {
            cluster.ids().into_iter().all(|id| cluster.node(id).map(Node::applied_index) >= index)
        };
        assert!(cluster.run_until(20, all), "seed {seed}");
    }
}
