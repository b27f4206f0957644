//! What the simulated network and disk do. Changed by tests as they go.

use crate::node_api::NodeId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(in crate::tier2) struct Rules {
    pub(in crate::tier2) delay_us_min: u64,
    pub(in crate::tier2) delay_us_max: u64,
    pub(in crate::tier2) loss_permille: u64,
    pub(in crate::tier2) double_permille: u64,
    /// Messages that may be overtaken by later ones on their link.
    pub(in crate::tier2) reorder_permille: u64,
    pub(in crate::tier2) disk_us_max: u64,
    /// Cut one way: (from, to).
    pub(in crate::tier2) cut: BTreeSet<(NodeId, NodeId)>,
    last_arrival_us: BTreeMap<(NodeId, NodeId), u64>,
}

impl Default for Rules {
    /// A quiet local network and a quick disk.
    fn default() -> Rules {
        Rules {
            delay_us_min: 100,
            delay_us_max: 1_000,
            loss_permille: 0,
            double_permille: 0,
            reorder_permille: 0,
            disk_us_max: 1_000,
            cut: BTreeSet::new(),
            last_arrival_us: BTreeMap::new(),
        }
    }
}

impl Rules {
    pub(in crate::tier2) fn passes(&self, from: NodeId, to: NodeId) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Cuts both ways between two groups.
    pub(in crate::tier2) fn split(&mut self, one: &[NodeId], other: &[NodeId]) {
        for a in one {
            for b in other {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }

    pub(in crate::tier2) fn heal(&mut self) {
        let last_arrival_us = std::mem::take(&mut self.last_arrival_us);
        *self = Rules { last_arrival_us, ..Rules::default() };
    }

    pub(in crate::tier2) fn in_order(&mut self, from: NodeId, to: NodeId, arrives_us: u64) -> u64 {
        let last = self.last_arrival_us.entry((from, to)).or_default();
        *last = (*last + 1).max(arrives_us);
        *last
    }
}
