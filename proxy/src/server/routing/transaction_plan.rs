//! Which store a transaction, a command in it, or a `WATCH` belongs to. Decisions alone, as values; carried out by
//! [`crate::server::commands::transaction`]. Part of [`CommandContext`].

use crate::server::client::transaction::TransactionTarget;
use crate::server::commands::transaction::not_in_transaction;
use crate::server::context::CommandContext;
use crate::server::routing::router::{Destination, PlainDestination};
use redfence_core::grammar;
use redfence_core::grammar::errors::shown;
use redfence_core::machine::check_in_transaction;
use redfence_core::reply::Refusal;

impl CommandContext {
    /// Whether plain keys of both tiers may come from this client.
    fn may_use_both_tiers(&self) -> bool {
        self.has_upstream() && self.routes.router.has_correctness_routes()
    }

    /// The target of a transaction that begins now.
    pub(in crate::server) fn target_of_next(&self) -> TransactionTarget {
        if !self.has_upstream() {
            TransactionTarget::Keyspace
        } else if !self.may_use_both_tiers() || self.client.watches_upstream {
            TransactionTarget::Upstream
        } else if self.client.watched.is_empty() {
            TransactionTarget::Undecided
        } else {
            TransactionTarget::Keyspace
        }
    }

    /// Where a command would go outside, and the name that says so. `Undecided`: it has no key, and goes wherever the others go.
    pub(in crate::server) fn wanted_target(
        &self,
        argv: &[&[u8]],
    ) -> Result<(TransactionTarget, Vec<u8>), Refusal> {
        if let Some(request) = grammar::parse(argv) {
            let request = request?;
            let name = argv.get(1).map(|word| word.to_vec()).unwrap_or_default();
            return match self.route_lock(&request)? {
                Destination::Tier1 => Ok((TransactionTarget::Upstream, name)),
                Destination::Tier2 => {
                    check_in_transaction(&request).map(|()| (TransactionTarget::Keyspace, name))
                }
                Destination::Node => Err(not_in_transaction(argv[0])),
            };
        }
        let keys = if self.may_use_both_tiers() { self.plain_keys(argv)? } else { Default::default() };
        let Some(first) = keys.first().map(|key| key.to_vec()) else {
            return Ok((TransactionTarget::Undecided, Vec::new()));
        };
        Ok(match self.route_plain(keys)? {
            PlainDestination::Upstream => (TransactionTarget::Upstream, first),
            PlainDestination::Keyspace => (TransactionTarget::Keyspace, first),
        })
    }

    /// Where the keys of a `WATCH` live. Refused where those watched so far live elsewhere.
    pub(in crate::server) fn plan_watch(&self, keys: &[&[u8]]) -> Result<PlainDestination, Refusal> {
        let destination = self.route_plain(keys.iter().copied())?;
        let elsewhere = match destination {
            PlainDestination::Upstream => !self.client.watched.is_empty(),
            PlainDestination::Keyspace => self.client.watches_upstream,
        };
        if elsewhere {
            return Err(Refusal::new(format!(
                "CROSSTIER '{}' belongs to another tier than the keys watched so far; UNWATCH first",
                shown(keys[0])
            )));
        }
        Ok(destination)
    }
}
