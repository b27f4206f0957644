//! What the simulated network does to messages between nodes.

use crate::rng::Rng;
use redfence::node_api::NodeId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub struct Network {
    pub delay_us: (u64, u64),
    pub loss_permille: u64,
    pub double_permille: u64,
    /// Messages that later ones may overtake.
    pub reorder_permille: u64,
    /// Cut one way: (from, to).
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// When the last message on each link arrives, to keep it in order.
    last_us: BTreeMap<(NodeId, NodeId), u64>,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            delay_us: (50, 800),
            loss_permille: 0,
            double_permille: 0,
            reorder_permille: 0,
            cut: BTreeSet::new(),
            last_us: BTreeMap::new(),
        }
    }
}

impl Network {
    pub fn heal(&mut self) {
        let last_us = std::mem::take(&mut self.last_us);
        *self = Network { last_us, ..Network::default() };
    }

    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.cut.is_empty()
            && self.loss_permille + self.double_permille + self.reorder_permille == 0
            && self.delay_us == Network::default().delay_us
    }

    /// Cuts both ways between two groups.
    pub fn split(&mut self, one: &[NodeId], other: &[NodeId]) {
        for a in one {
            for b in other.iter().filter(|b| *b != a) {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }

    /// When a message sent now arrives: never, once or twice.
    pub fn arrivals(&mut self, from: NodeId, to: NodeId, now_us: u64, rng: &mut Rng) -> Vec<u64> {
        if self.cut.contains(&(from, to)) || rng.per_mille(self.loss_permille) {
            return Vec::new();
        }
        let mut arrivals = vec![self.arrival_us(from, to, now_us, rng)];
        if rng.per_mille(self.double_permille) {
            arrivals.push(self.arrival_us(from, to, now_us, rng) + rng.below(200_000));
        }
        arrivals
    }

    fn arrival_us(&mut self, from: NodeId, to: NodeId, now_us: u64, rng: &mut Rng) -> u64 {
        let delay_us = rng.between(self.delay_us.0, self.delay_us.1);
        if rng.per_mille(self.reorder_permille) {
            return now_us + delay_us + rng.below(10 * self.delay_us.1);
        }
        let last_us = self.last_us.entry((from, to)).or_default();
        *last_us = (*last_us + 1).max(now_us + delay_us);
        *last_us
    }
}
