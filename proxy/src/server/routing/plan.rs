//! Who answers a command: one decision, made once, as a value. [`super::dispatch`] carries it out; [`super::transaction_plan`] decides
//! for transactions. Part of [`CommandContext`].

use crate::resp::request::Excess;
use crate::server::client::transaction::TransactionTarget;
use crate::server::commands::transaction::crosses_tiers;
use crate::server::commands::{not_supported_yet, server, unknown_command, Local};
use crate::server::context::CommandContext;
use crate::server::net::in_flight::InFlight;
use crate::server::routing::keys::{self, Keys};
use crate::server::routing::router::{depends_on_routes, Destination, PlainDestination};
use redfence_core::grammar::{self, fence, Request};
use redfence_core::keyspace::key_spec::KeySpec;
use redfence_core::keyspace::table;
use redfence_core::machine::is_read;
use redfence_core::reply::Refusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum Plan<'a> {
    /// A command about the connection, which this node answers itself.
    Local(Local),
    /// `LOCK.*` and `FENCE.*`.
    Lock(LockPlan<'a>),
    /// Passes to the upstream unchanged.
    Upstream(UpstreamPath),
    /// `SCRIPT LOAD`, `EXISTS` and `FLUSH` where keys live in both stores.
    BothStores,
    /// The Raft keyspace.
    Keyspace(KeyspacePath),
    /// A command about the server, where no upstream answers it.
    Server,
}

/// A `LOCK.*` or `FENCE.*` command and who answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) struct LockPlan<'a> {
    pub(in crate::server) request: Request<'a>,
    pub(in crate::server) destination: Destination,
    /// Other routes might have decided otherwise: a grant is sent only while these hold.
    pub(in crate::server) is_routed: bool,
    /// A conversion in Tier 2 of a name that belongs to Tier 1 but for commands that name the other: where the fence is not known, it is
    /// none of Tier 2.
    pub(in crate::server) is_doubtful: bool,
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
    /// Through the log. `is_routed`: as in [`LockPlan`].
    Write { is_routed: bool },
}

impl CommandContext {
    pub(in crate::server) fn plan<'a>(
        &self,
        local: Option<Local>,
        argv: &'a [&'a [u8]],
    ) -> Result<Plan<'a>, Refusal> {
        if let Some(plan) = self.plan_lock(argv) {
            return plan.map(Plan::Lock);
        }
        let router = &self.routes.router;
        match local {
            Some(local) if !(local.yields_to_upstream() && self.has_upstream()) => {
                return Ok(Plan::Local(local));
            }
            Some(_) | None => {}
        }
        let keys = if router.has_correctness_routes() { self.plain_keys(argv)? } else { Default::default() };
        let destination = self.route_plain(keys)?;
        if let Some(local) = local.filter(|local| self.counts_receivers(*local, argv)) {
            return Ok(Plan::Local(local));
        }
        match destination {
            PlainDestination::Upstream if self.is_for_both_stores(argv) => Ok(Plan::BothStores),
            PlainDestination::Upstream if keys::may_share(argv[0]) => {
                Ok(Plan::Upstream(UpstreamPath::Shared))
            }
            PlainDestination::Upstream => Ok(Plan::Upstream(UpstreamPath::Own)),
            PlainDestination::Keyspace => self.plan_keyspace(argv),
        }
    }

    /// The keys of a plain command. Refused where their positions are not known, and one of them could belong to Tier 2.
    pub(super) fn plain_keys<'k>(&self, argv: &[&'k [u8]]) -> Result<Keys<'k>, Refusal> {
        match keys::of(argv) {
            Some(keys) => Ok(keys),
            None => self.spec_by_upstream(argv).map(|spec| spec.keys_of(argv)),
        }
    }

    /// Where the upstream Redis says that a command has its keys which is in no table of ours.
    fn spec_by_upstream(&self, argv: &[&[u8]]) -> Result<KeySpec, Refusal> {
        match &self.server.upstream {
            Some(upstream) if self.has_upstream() && self.routes.router.has_correctness_routes() => {
                upstream.command_table().key_spec(argv)
            }
            // One store has all keys.
            Some(_) | None => Ok(KeySpec::None),
        }
    }

    /// `None` where the command is not one of ours.
    pub(in crate::server) fn plan_lock<'a>(
        &self,
        argv: &'a [&'a [u8]],
    ) -> Option<Result<LockPlan<'a>, Refusal>> {
        let request = grammar::parse(argv)?;
        Some(request.and_then(|request| {
            let destination = self.route_lock(&request)?;
            if let (Request::FenceCall(_), Destination::Tier1) = (&request, destination) {
                self.check_guarded_keys(&argv[fence::FenceCall::COMMAND_AT..])?;
            }
            let is_routed = self.has_upstream() && depends_on_routes(&request);
            let is_doubtful = if let Request::Convert(convert) = &request {
                self.routes.router.is_of_tier1(self.client.listener_kind, convert.resource)
            } else {
                false
            };
            Ok(LockPlan { request, destination, is_routed, is_doubtful })
        }))
    }

    /// The mark of a `FENCE.CALL` is in the upstream Redis, so the keys of its command must be too.
    fn check_guarded_keys(&self, argv: &[&[u8]]) -> Result<(), Refusal> {
        match self.route_plain(self.plain_keys(argv)?)? {
            PlainDestination::Upstream => Ok(()),
            PlainDestination::Keyspace => Err(Refusal::new(
                "CROSSTIER high-water marks are in the upstream Redis, and keys of this command are not",
            )),
        }
    }

    /// Whether a command in a pipeline is sure to pass by a shared connection, by its name and the word behind it. `false` where
    /// [`CommandContext::plan`] must look.
    pub(in crate::server) fn is_sure_to_pass(&self, name: &[u8], first: Option<&[u8]>) -> bool {
        let Some(key_at) = keys::quick(name) else { return false };
        let router = &self.routes.router;
        if !router.has_correctness_routes() {
            return true;
        }
        let (keys::QuickKey::First, Some(key)) = (key_at, first) else { return false };
        router.plain(self.client.listener_kind, [key]) == Ok(PlainDestination::Upstream)
    }

    /// Whether routes let commands pass at all. The same for all commands of a pipeline.
    pub(in crate::server) fn may_pass_by_routes(&self) -> bool {
        self.has_upstream() && !self.routes.is_stale && self.routes.router.check_upstream().is_ok()
    }

    /// Whether a command too large to hold must be seen to its end before it is known who answers it.
    pub(in crate::server) fn must_see_all_keys(&self, argv: &[&[u8]]) -> bool {
        let is_limited = !self.may_do_everything();
        if !is_limited && !self.routes.router.has_correctness_routes() {
            return false;
        }
        let spec = keys::spec_of(argv[0]).map_or_else(|| self.spec_by_upstream(argv), Ok);
        // One that is refused whatever follows need not be seen. Whose rights are limited may have some in keys that follow.
        spec.map_or(is_limited, |spec| !spec.are_within(argv.len()))
    }

    /// Whether a script would run at the upstream Redis, where nobody checks what it does.
    pub(in crate::server) fn passes_script(&self, argv: &[&[u8]]) -> bool {
        let words =
            if grammar::is_ours(argv[0]) { argv.get(fence::FenceCall::COMMAND_AT..) } else { Some(argv) };
        let keys = words.filter(|words| !words.is_empty()).and_then(keys::of).unwrap_or_default();
        self.has_upstream() && !matches!(self.route_plain(keys), Ok(PlainDestination::Keyspace))
    }

    /// A command larger than Redfence itself answers: all its keys have been seen, or none can matter.
    pub(super) fn check_large(&self, argv: &[&[u8]], excess: Excess) -> Result<(), Refusal> {
        if self.has_upstream() && self.is_for_both_stores(argv) {
            return Err(excess.refusal());
        }
        match self.route_plain(self.plain_keys(argv)?)? {
            PlainDestination::Upstream if self.transaction_target() == Some(TransactionTarget::Keyspace) => {
                Err(crosses_tiers(argv[0]))
            }
            PlainDestination::Upstream => Ok(()),
            PlainDestination::Keyspace => Err(excess.refusal()),
        }
    }

    /// `SCRIPT LOAD`, `EXISTS` and `FLUSH` name no key: where both stores have keys, both must know the scripts.
    fn is_for_both_stores(&self, argv: &[&[u8]]) -> bool {
        let verbs: [&[u8]; 3] = [b"LOAD", b"EXISTS", b"FLUSH"];
        argv[0].eq_ignore_ascii_case(b"SCRIPT")
            && self.routes.router.has_correctness_routes()
            && argv.get(1).is_some_and(|verb| verbs.iter().any(|known| known.eq_ignore_ascii_case(verb)))
    }

    fn plan_keyspace<'a>(&self, argv: &[&[u8]]) -> Result<Plan<'a>, Refusal> {
        let name = argv[0];
        let Some(row) = table::find(name) else {
            return match name {
                _ if server::knows(name) => Ok(Plan::Server),
                // With an upstream: it has the command, or its keys would not have been found.
                _ if keys::is_redis_command(name) || self.has_upstream() => Err(not_supported_yet(name)),
                _ => Err(unknown_command(argv)),
            };
        };
        if row.is(table::PUBSUB) {
            return Err(not_supported_yet(name));
        }
        // A read whose keys are tracked goes through the log: only there is it known what was read when.
        let by_state = !self.client.keeps_reads();
        // Rights of a user go with a script to the leader.
        let path =
            if row.is(table::SCRIPT) && self.client.user.is_unrestricted() && self.may_read(argv) && by_state
            {
                KeyspacePath::ReadScript
            } else if is_read(row) && self.replies.in_flight != InFlight::Tier2 && by_state {
                KeyspacePath::Read
            } else {
                // A read behind writes in flight too: it must see them, and need not wait for them.
                KeyspacePath::Write { is_routed: self.has_upstream() }
            };
        Ok(Plan::Keyspace(path))
    }

    /// Whether a script may run on this node's own state.
    fn may_read(&self, argv: &[&[u8]]) -> bool {
        self.server.known_scripts.may_read(argv, self.server.now_ms())
    }
}
