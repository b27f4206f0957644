//! Who answers a command: one decision, made once, as a value. [`super::dispatch`] carries it out. Part of [`CommandContext`].

use crate::server::commands::{not_supported_yet, server, unknown_command, Local};
use crate::server::context::CommandContext;
use crate::server::net::in_flight::InFlight;
use crate::server::routing::keys;
use crate::server::routing::router::PlainDestination;
use redfence_core::grammar;
use redfence_core::keyspace::table;
use redfence_core::machine::is_read;
use redfence_core::reply::Refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Plan {
    /// A command about the connection, which this node answers itself.
    Local(Local),
    /// `LOCK.*` and `FENCE.*`: the router decides between the tiers once the words are parsed.
    Lock,
    /// Passes to the upstream unchanged.
    Upstream(UpstreamPath),
    /// `SCRIPT LOAD`, `EXISTS` and `FLUSH` where keys live in both stores.
    BothStores,
    /// The Raft keyspace.
    Keyspace(KeyspacePath),
    /// A command about the server, where no upstream answers it.
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum UpstreamPath {
    /// The client's own connection.
    Own,
    /// A connection shared with other clients, if this client may use it.
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum KeyspacePath {
    /// From this node's state, by ReadIndex.
    Read,
    /// A script that only reads, run on this node's state.
    ReadScript,
    /// Through the log.
    Write,
}

impl CommandContext {
    pub(in crate::server) fn plan(&self, local: Option<Local>, argv: &[&[u8]]) -> Result<Plan, Refusal> {
        if grammar::is_ours(argv[0]) {
            return Ok(Plan::Lock);
        }
        let router = &self.routes.router;
        if let Some(local) = local {
            let passes = local.yields_to_upstream() && router.has_upstream_for(self.client.listener_kind);
            if !passes {
                return Ok(Plan::Local(local));
            }
        }
        let keys = if router.has_correctness_routes() { keys::of(argv) } else { Default::default() };
        match self.route_plain(keys)? {
            PlainDestination::Upstream if self.is_for_both_stores(argv) => Ok(Plan::BothStores),
            PlainDestination::Upstream if keys::may_share(argv[0]) => {
                Ok(Plan::Upstream(UpstreamPath::Shared))
            }
            PlainDestination::Upstream => Ok(Plan::Upstream(UpstreamPath::Own)),
            PlainDestination::Keyspace => self.plan_keyspace(argv),
        }
    }

    /// `SCRIPT LOAD`, `EXISTS` and `FLUSH` name no key: where both stores have keys, both must know the scripts.
    fn is_for_both_stores(&self, argv: &[&[u8]]) -> bool {
        let verbs: [&[u8]; 3] = [b"LOAD", b"EXISTS", b"FLUSH"];
        argv[0].eq_ignore_ascii_case(b"SCRIPT")
            && self.routes.router.has_correctness_routes()
            && argv.get(1).is_some_and(|verb| verbs.iter().any(|known| known.eq_ignore_ascii_case(verb)))
    }

    fn plan_keyspace(&self, argv: &[&[u8]]) -> Result<Plan, Refusal> {
        let name = argv[0];
        let Some(row) = table::find(name) else {
            return match name {
                _ if server::knows(name) => Ok(Plan::Server),
                _ if keys::is_redis_command(name) => Err(not_supported_yet(name)),
                _ => Err(unknown_command(argv)),
            };
        };
        if row.is(table::PUBSUB) {
            return Err(not_supported_yet(name));
        }
        // A read whose keys are tracked goes through the log: only there is it known what was read when.
        let by_state = !self.client.keeps_reads();
        let path = if row.is(table::SCRIPT) && self.may_read(argv) && by_state {
            KeyspacePath::ReadScript
        } else if is_read(row) && self.replies.in_flight != InFlight::Tier2 && by_state {
            KeyspacePath::Read
        } else {
            // A read behind writes in flight too: it must see them, and need not wait for them.
            KeyspacePath::Write
        };
        Ok(Plan::Keyspace(path))
    }

    /// Whether a script may run on this node's own state.
    fn may_read(&self, argv: &[&[u8]]) -> bool {
        self.server.known_scripts.may_read(argv, self.server.now_ms())
    }
}
