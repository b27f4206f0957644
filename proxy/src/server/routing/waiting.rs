//! What a blocked client waits for, so that a change of routes ends its wait only if it decides the command otherwise.
//!
//! A connection that waits is decided by the router of then, for as long as an hour. Its client info says what the command was and who
//! serves it: whoever follows new routes asks them again, by the same rules.

use super::keys;
use super::router::{Destination, ListenerKind, PlainDestination, Router};
use redfence_core::grammar;

/// Words of a longer command are not kept: it counts as one that every change decides otherwise.
const WORDS_BYTES_MAX: usize = 16 * 1024;

/// A command that may be in flight for long, alone on its connection.
#[derive(Debug)]
pub struct Waiting {
    listener_kind: ListenerKind,
    argv: Vec<Box<[u8]>>,
    by: ServedBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServedBy {
    Redis,
    Tier2,
}

impl Waiting {
    /// `None`: it is too long to be kept, depends on no routes, or its keys are known to the upstream Redis alone.
    #[must_use]
    pub fn of(router: &Router, listener_kind: ListenerKind, argv: &[&[u8]]) -> Option<Waiting> {
        if argv.iter().map(|word| word.len() + 16).sum::<usize>() > WORDS_BYTES_MAX {
            return None;
        }
        let by = served_by(router, listener_kind, argv)?;
        Some(Waiting { listener_kind, argv: argv.iter().map(|word| (*word).into()).collect(), by })
    }

    /// Whether this router, and the pending routes it knows, decide the command as it was decided.
    #[must_use]
    pub fn is_decided_alike_by(&self, router: &Router) -> bool {
        let argv: Vec<&[u8]> = self.argv.iter().map(|word| &word[..]).collect();
        served_by(router, self.listener_kind, &argv) == Some(self.by)
    }

    #[must_use]
    pub fn is_at_tier2(&self) -> bool {
        self.by == ServedBy::Tier2
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.argv.iter().map(|word| word.len() + 16).sum()
    }
}

fn served_by(router: &Router, listener_kind: ListenerKind, argv: &[&[u8]]) -> Option<ServedBy> {
    if grammar::is_ours(argv[0]) {
        let request = grammar::parse(argv)?.ok()?;
        return match router.lock(listener_kind, &request).ok()? {
            Destination::Tier1 => Some(ServedBy::Redis),
            Destination::Tier2 => Some(ServedBy::Tier2),
            Destination::Node => None,
        };
    }
    match router.plain(listener_kind, keys::of(argv)?).ok()? {
        PlainDestination::Upstream => Some(ServedBy::Redis),
        PlainDestination::Keyspace => Some(ServedBy::Tier2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::routing::router::UpstreamMatch;
    use redfence_core::routes::{parse_list, Routing};
    use redfence_core::types::Tier;

    fn routing(text: &str) -> Routing {
        Routing { routes: parse_list(text.as_bytes()).unwrap(), default_tier: Tier::Efficiency }
    }

    #[test]
    fn a_wait_is_ended_by_a_change_that_decides_it_otherwise_and_by_no_other() {
        let before = Router::of(routing("a:*=correctness"), None, true, UpstreamMatch::Same);
        let pending = |next: &str| {
            Router::of(routing("a:*=correctness"), Some(routing(next)), true, UpstreamMatch::Same)
        };
        let in_force = |next: &str| Router::of(routing(next), None, true, UpstreamMatch::Same);
        for (line, next, alike) in [
            ("LOCK.ACQUIRE a:1 10 WAIT 10", "a:*=correctness z:*=correctness", true),
            ("LOCK.ACQUIRE a:1 10 WAIT 10", "z:*=correctness", false),
            ("LOCK.ACQUIRE a:1 10 WAIT 10 TIER CORRECTNESS", "z:*=correctness", true),
            ("LOCK.ACQUIRE b:1 10 WAIT 10", "a:*=correctness b:*=correctness", false),
            ("LOCK.ACQUIRE b:1 10 WAIT 10", "a:*=correctness c:*=correctness", true),
            ("BLPOP a:1 a:2 0", "a:1=correctness", false),
            ("BLPOP a:1 0", "a:1=correctness", true),
            ("BLPOP b:1 0", "a:*=correctness b:2=correctness", true),
            ("BLPOP b:1 b:2 0", "a:*=correctness b:2=correctness", false),
        ] {
            let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let waiting = Waiting::of(&before, ListenerKind::Main, &argv).unwrap();
            assert_eq!(waiting.is_decided_alike_by(&pending(next)), alike, "{line}, pending {next}");
            assert_eq!(waiting.is_decided_alike_by(&in_force(next)), alike, "{line}, in force {next}");
        }
        // Its keys are not known here: every change ends it.
        assert!(Waiting::of(&before, ListenerKind::Main, &[b"MODULE.WAIT", b"b:1"]).is_none());
    }
}
