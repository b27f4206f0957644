//! `LOCK.*` and `FENCE.*`: the router decides, then Tier 1, Tier 2 or the node itself answers.

use crate::events::GrantKey;
use crate::log_text::Escaped;
use crate::node_api::{AdminRequest, NodeStatus, OwnedQuery};
use crate::server::commands::fence_kind::FenceLook;
use crate::server::commands::notify::AskedLocks;
use crate::server::commands::version_wait;
use crate::server::context::CommandContext;
use crate::server::ids;
use crate::server::net::connection::{Progress, KEPT_BYTES_MAX};
use crate::server::net::in_flight::{
    AfterReply, AwaitedReply, IfAbandoned, IfRefused, InFlight, SessionStep, Source, UpstreamCall,
};
use crate::server::routing::plan::LockPlan;
use crate::server::routing::rerouting;
use crate::server::routing::router::Destination;
use crate::server::stats::CommandKind;
use crate::tier1::lua::{self, LuaWait};
use crate::tier1::upstream::{Health, Tier1Backend};
use bytes::Bytes;
use redfence_core::grammar::cluster::{Backup, Cluster};
use redfence_core::grammar::session::SessionCommand;
use redfence_core::grammar::{errors, fence, Request};
use redfence_core::machine::marks::check_guarded;
use redfence_core::machine::request::{self, MachineWork, RequestContext};
use redfence_core::machine::settings::{Setting, SettingsCommand};
use redfence_core::machine::version::{self, UpgradeCommand};
use redfence_core::machine::{put_user, Command, GrantOf, Query};
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{LockKind, OwnerIdentity, SessionId};
use smallvec::smallvec;
use std::cell::RefCell;
use std::sync::Arc;

/// What `write` writes, in bytes of just its size: made in a buffer of the thread, it costs one allocation.
fn encoded(write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        write(buffer);
        let bytes = Bytes::copy_from_slice(buffer);
        buffer.shrink_to(KEPT_BYTES_MAX);
        bytes
    })
}

impl CommandContext {
    pub(in crate::server) fn lock_command(
        &mut self,
        plan: LockPlan<'_>,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
    ) -> Progress {
        let LockPlan { request, destination, is_routed, is_doubtful } = plan;
        let names_no_owner = request.acquire_options().is_some_and(|options| options.owner.is_none());
        let owner = if names_no_owner { ids::owner() } else { Default::default() };
        if let Request::ForceRelease(request) = &request {
            let resource = Escaped(request.resource);
            tracing::warn!(client = %self.client.info.address, %resource, "LOCK.FORCERELEASE");
        }
        match destination {
            Destination::Node => {
                if let Request::Notify(request) = &request {
                    return self.notify_command(request);
                }
                self.cluster_command(&request)
            }
            Destination::Tier2 if is_doubtful => match self.look_at_converted(&request) {
                FenceLook::UnderWay => Progress::Stalled,
                FenceLook::Refused(refusal) => self.refuse(refusal),
                FenceLook::Known => self.tier2_command(request, is_routed, argv, &owner),
            },
            Destination::Tier2 => self.tier2_command(request, is_routed, argv, &owner),
            Destination::Tier1 => match self.look_at_fence(&request) {
                FenceLook::UnderWay => Progress::Stalled,
                FenceLook::Refused(refusal) => self.refuse_and_abort(refusal),
                FenceLook::Known => self.upstream_command(argv, frame, &request, &owner),
            },
        }
    }

    // ---- Tier 2 ----

    fn tier2_command<'r: 'a, 'a>(
        &mut self,
        request: Request<'r>,
        is_routed: bool,
        argv: &'a [&'a [u8]],
        owner: &'a [u8],
    ) -> Progress {
        let mut guarded: &[&[u8]] = &[];
        if let Request::FenceCall(_) = &request {
            guarded = &argv[fence::FenceCall::COMMAND_AT..];
            if let Err(refusal) = check_guarded(guarded) {
                return self.refuse(refusal);
            }
        }
        let waits = request.wait_ms() > 0;
        let looks = matches!(
            request,
            Request::Info(_)
                | Request::Explain(_)
                | Request::Queue(_)
                | Request::Scan(_)
                | Request::FenceGet(_)
                | Request::Session(SessionCommand::Info(_))
        );
        let mut in_flight = match (waits, looks) {
            (true, _) => InFlight::Alone,
            (false, true) => InFlight::Reads,
            (false, false) => InFlight::Tier2,
        };
        if !self.can_join(in_flight) {
            return Progress::Stalled;
        }
        let opens_session = matches!(request, Request::Session(SessionCommand::Open { .. }));
        let session = if opens_session { ids::session() } else { SessionId(0) };
        let owner_is_generated = request.acquire_options().is_some_and(|options| options.owner.is_none());
        let session_step =
            if let Request::Session(request) = &request { step_of(request, session) } else { None };
        if let Request::Session(SessionCommand::Open { ttl_ms, .. }) = &request {
            if !self.remember_session(session, *ttl_ms) {
                return self.refuse(Refusal::new(
                    "ERR this connection has opened 1024 sessions already; close some",
                ));
            }
        }
        let context = RequestContext {
            db: self.client.db,
            owner,
            session,
            sessions: self.client.user.session_scope(),
            resp: self.client.protocol.into(),
            guarded,
        };
        let wait_ms = request.wait_ms();
        let mut after_reply = match (&request, session_step) {
            (_, Some(step)) => AfterReply::Session(step),
            (Request::Explain(_), None) if !self.client.user.is_unrestricted() => AfterReply::Explained,
            (_, None) => AfterReply::Nothing,
        };
        let (source, if_abandoned) = match request::work(request, context) {
            Err(refusal) => return self.refuse(refusal),
            Ok(MachineWork::Look(query)) => {
                let pending = self.server.tier2.query_for(&self.client.account, owned(&query));
                (Source::Tier2(pending), IfAbandoned::Nothing)
            }
            Ok(MachineWork::Change(mut command)) => {
                self.mark_own_keep_alive(&mut command);
                let version = self.version_to_come(&command);
                if version.is_some() {
                    in_flight = InFlight::Alone;
                }
                if !self.can_join(in_flight) {
                    return Progress::Stalled;
                }
                let grants = matches!(
                    command,
                    Command::Acquire { .. }
                        | Command::AcquireWith { .. }
                        | Command::MAcquire { .. }
                        | Command::MAcquireShared { .. }
                );
                let names_session = matches!(
                    command,
                    Command::SessionOpen { .. }
                        | Command::SessionOpenWith { .. }
                        | Command::SessionKeepAlive { .. }
                        | Command::SessionClose { .. }
                );
                let blob = encoded(|blob| {
                    if grants || names_session {
                        put_user(blob, self.client.user.tag);
                    }
                    command.encode(blob);
                });
                if grants || matches!(command, Command::Convert { .. }) {
                    after_reply = self.after_grant(&command, &blob);
                } else {
                    if let Some(releases) = self.after_release(&command) {
                        after_reply = releases;
                    }
                    if let Some(key) = self.renews(&command) {
                        after_reply = AfterReply::Renewed(key);
                    }
                }
                let if_abandoned = if grants && owner_is_generated {
                    IfAbandoned::ReleaseGrant(blob.clone())
                } else {
                    IfAbandoned::Nothing
                };
                let client = self.client.info.id;
                let source = match version {
                    Some(version) => {
                        let server = Arc::clone(&self.server);
                        let gives_back = matches!(if_abandoned, IfAbandoned::ReleaseGrant(_));
                        Source::Node(version_wait::start(server, version, client, blob, wait_ms, gives_back))
                    }
                    None => {
                        let caller = self.client.caller();
                        let tier2 = &self.server.tier2;
                        Source::Tier2(tier2.submit_for(client, caller, None, None, blob, wait_ms))
                    }
                };
                (source, if_abandoned)
            }
        };
        self.await_call(in_flight, source, waits, if_abandoned);
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            call.is_routed = is_routed;
        }
        self.then(after_reply);
        Progress::Done
    }

    /// What is kept of a command that may be granted locks, for the case that the client loses them.
    fn after_grant(&mut self, command: &Command<'_>, blob: &Bytes) -> AfterReply {
        let user = self.client.user.tag;
        if self.client.losses.is_some() {
            let asked = AskedLocks::read(blob);
            let attempts_bytes = asked.as_ref().map_or(0, |asked| self.note_asked(asked));
            return AfterReply::Granted { blob: blob.clone(), attempts_bytes, user };
        }
        if let Command::Acquire { db, resource, session, .. }
        | Command::AcquireWith { db, resource, session, .. } = command
        {
            self.replies.asked_names.push(resource);
            return AfterReply::GrantedOne { db: *db, in_session: session.is_some(), converts: None, user };
        }
        if let Command::Convert { db, resource, fence, .. } = command {
            self.replies.asked_names.push(resource);
            return AfterReply::GrantedOne { db: *db, in_session: true, converts: Some(*fence), user };
        }
        AfterReply::Granted { blob: blob.clone(), attempts_bytes: 0, user }
    }

    /// What the client releases it does not lose.
    fn after_release(&mut self, command: &Command<'_>) -> Option<AfterReply> {
        if self.client.losses.is_some() {
            let key = |db, name: &[u8], fence| GrantKey { db, resource: Bytes::copy_from_slice(name), fence };
            if let Command::Release { db, resource, fence } = command {
                return Some(AfterReply::ReleasedWatched(smallvec![key(*db, resource, *fence)]));
            }
            if let Command::MRelease { db, pairs } = command {
                let keys = pairs.iter().map(|(name, fence)| key(*db, name, *fence));
                return Some(AfterReply::ReleasedWatched(keys.collect()));
            }
            return None;
        }
        let told = &mut self.client.told;
        if told.is_empty() {
            return None;
        }
        let mut count = 0;
        if let Command::Release { db, resource, fence } = command {
            count = usize::from(told.releases(*db, resource, *fence));
        }
        if let Command::MRelease { db, pairs } = command {
            count = pairs.iter().filter(|(name, fence)| told.releases(*db, name, *fence)).count();
        }
        (count > 0).then_some(AfterReply::Released { count })
    }

    /// The grant that a command renews, where anybody wants to know how long it lasts.
    fn renews(&self, command: &Command<'_>) -> Option<GrantKey> {
        let Command::Renew { db, resource, fence, .. } = command else { return None };
        let is_wanted = !self.client.told.is_empty() || self.server.losses.has_clients();
        is_wanted.then(|| GrantKey { db: *db, resource: Bytes::copy_from_slice(resource), fence: *fence })
    }

    fn remember_session(&mut self, id: SessionId, ttl_ms: u64) -> bool {
        let session_keepalive = &self.server.session_keepalive;
        let sessions = self.client.sessions.get_or_insert_with(|| session_keepalive.register());
        session_keepalive.add(sessions, id, ttl_ms)
    }

    /// On the connection that opened the session it is a command like any other, which takes nothing over.
    fn mark_own_keep_alive(&self, command: &mut Command<'_>) {
        if let Command::SessionKeepAlive { id, own } = command {
            let is_here = self.client.sessions.as_ref().is_some_and(|sessions| sessions.has(*id));
            *own = is_here && self.server.tier2.status().cluster_version >= version::SECOND;
        }
    }

    // ---- the node itself ----

    fn cluster_command(&mut self, request: &Request<'_>) -> Progress {
        let Request::Cluster(request) = request else { unreachable!("the router sends nothing else") };
        let admin = match request {
            Cluster::Info => {
                let reply = self.cluster_info();
                self.reply(&reply);
                return Progress::Done;
            }
            Cluster::Nodes => {
                let nodes = self.server.tier2.status().nodes.iter().map(node_row).collect();
                self.reply(&Reply::Array(nodes));
                return Progress::Done;
            }
            Cluster::Version => {
                let reply = self.cluster_version();
                self.reply(&reply);
                return Progress::Done;
            }
            Cluster::Add { id, address } => AdminRequest::Add { id: *id, addr: (*address).to_string() },
            Cluster::Remove { id } => AdminRequest::Remove { id: *id },
            Cluster::Transfer { id } => AdminRequest::Transfer { id: *id },
            Cluster::Get { name } => return self.get_setting(*name),
            Cluster::Set { name, value } => return self.set_setting(*name, value),
            Cluster::UpgradeHold => return self.cluster_change(&Command::Upgrade(UpgradeCommand::Hold)),
            Cluster::UpgradeFinish => return self.cluster_change(&Command::Upgrade(UpgradeCommand::Finish)),
            Cluster::Backup(step) => return self.backup(*step),
            #[cfg(feature = "next-version")]
            Cluster::Next => return self.cluster_change(&Command::Next),
        };
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        tracing::warn!(client = %self.client.info.address, ?admin, "LOCK.CLUSTER");
        let pending = self.server.tier2.admin(admin);
        self.await_call(InFlight::Alone, Source::Tier2(pending), false, IfAbandoned::Nothing);
        self.needs_no_routes();
        Progress::Done
    }

    fn backup(&mut self, step: Backup) -> Progress {
        if !self.can_join(InFlight::Reads) {
            return Progress::Stalled;
        }
        if step == Backup::Begin {
            tracing::warn!(client = %self.client.info.address, "LOCK.CLUSTER BACKUP BEGIN");
        }
        let pending = self.server.tier2.query_for(&self.client.account, OwnedQuery::Backup(step));
        self.await_call(InFlight::Reads, Source::Tier2(pending), false, IfAbandoned::Nothing);
        Progress::Done
    }

    fn get_setting(&mut self, name: Setting) -> Progress {
        if !self.can_join(InFlight::Reads) {
            return Progress::Stalled;
        }
        let pending = self.server.tier2.query(OwnedQuery::Setting(name));
        self.await_call(InFlight::Reads, Source::Tier2(pending), false, IfAbandoned::Nothing);
        Progress::Done
    }

    fn set_setting(&mut self, name: Setting, value: &[u8]) -> Progress {
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let (setting, shown) = (name.as_str(), Escaped(value));
        tracing::warn!(client = %self.client.info.address, setting, value = %shown, "LOCK.CLUSTER SET");
        match name {
            Setting::Route | Setting::DefaultTier => {
                let receiver = rerouting::start(Arc::clone(&self.server), name, value.to_vec());
                self.await_call(InFlight::Alone, Source::Node(receiver), false, IfAbandoned::Nothing);
                // It waits until nothing depends on older routes, and must not wait for itself.
                self.needs_no_routes();
                return Progress::Done;
            }
            Setting::MaxMemory
            | Setting::IdleRetentionMs
            | Setting::MarkRetentionMs
            | Setting::SessionGraceMs => {}
        }
        self.log_change(&Command::Settings(SettingsCommand::Set { name: name.as_str().as_bytes(), value }))
    }

    fn cluster_change(&mut self, command: &Command<'_>) -> Progress {
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        tracing::warn!(client = %self.client.info.address, ?command, "LOCK.CLUSTER");
        self.log_change(command)
    }

    fn log_change(&mut self, command: &Command<'_>) -> Progress {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let pending = self.server.tier2.submit(blob.into(), 0);
        self.await_call(InFlight::Alone, Source::Tier2(pending), false, IfAbandoned::Nothing);
        Progress::Done
    }

    fn cluster_version(&self) -> Reply {
        let status = self.server.tier2.status();
        let pair = |key: &'static str, value: Reply| (Reply::Text(key), value);
        let number = |value: u64| Reply::Int(value as i64);
        let member = |node: &NodeStatus| (number(node.id), number(u64::from(node.version)));
        Reply::Map(vec![
            pair("cluster_version", number(u64::from(status.cluster_version))),
            pair("node_version", number(u64::from(status.node_version))),
            pair("members", Reply::Map(status.nodes.iter().map(member).collect())),
            pair("hold", number(u64::from(status.upgrade_hold))),
        ])
    }

    fn cluster_info(&self) -> Reply {
        let status = self.server.tier2.status();
        let pair = |key: &'static str, value: Reply| (Reply::Text(key), value);
        let number = |value: u64| Reply::Int(value as i64);
        Reply::Map(vec![
            pair("id", number(status.id)),
            pair("role", Reply::Text(status.role.as_str())),
            pair("leader", number(status.leader)),
            pair("term", number(status.term)),
            pair("commit", number(status.commit)),
            pair("applied", number(status.applied)),
            pair("voters", number(status.voters)),
            pair("quorum", number(u64::from(status.quorum))),
        ])
    }

    // ---- Tier 1, the upstream Redis ----

    fn upstream_command(
        &mut self,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
        request: &Request<'_>,
        owner: &[u8],
    ) -> Progress {
        let Some(upstream) = self.server.upstream.clone() else {
            return self.refuse(Refusal::new("UNAVAILABLE this node has no tier 1"));
        };
        let backend = match upstream.health() {
            Health::Up(backend) => backend,
            Health::Starting => {
                return self.refuse(Refusal::new(
                    "UNAVAILABLE the upstream Redis was not reached yet; nothing was done; retry",
                ));
            }
            Health::Down { reason } => {
                let reason = format!("upstream Redis at {}: {reason}", upstream.place);
                return self.refuse(crate::tier1::own_connection::refusal(&reason, false));
            }
        };
        if let Err(refusal) = check_tier1(&backend, request) {
            return self.refuse(refusal);
        }
        let waits = request.wait_ms() > 0;
        let call = UpstreamCall {
            waits,
            muted: self.client.is_muted(),
            operation: Some(kind_of(request)),
            by_lua: backend != Tier1Backend::Module,
            began_us: self.server.now_us(),
            audit: None,
            added: 0,
            edit: None,
            if_refused: IfRefused::Nothing,
        };
        let quick = !waits && !matches!(request, Request::FenceCall(_));
        match backend {
            Tier1Backend::Module if quick => return self.pass_shareable(argv, frame, call),
            Tier1Backend::Module => return self.send_to_upstream(argv, frame, call),
            Tier1Backend::Functions | Tier1Backend::Script { .. } => {}
        }
        if self.client.transaction.is_some() {
            return self.refuse_and_abort(no_transaction());
        }
        if !waits {
            let words = lua::call_for(&backend, request, argv);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            if quick {
                return self.pass_shareable_words(&words, call);
            }
            return self.send_to_upstream(&words, None, call);
        }
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let Some(waiting) = LuaWait::of(self.client.db, request, owner) else {
            unreachable!("only an acquire waits")
        };
        let (receiver, withdraw) = lua::start_waiting(upstream, backend, waiting);
        self.await_call(InFlight::Alone, Source::Channel(receiver), true, IfAbandoned::Nothing);
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            call.withdraw = Some(withdraw);
        }
        Progress::Done
    }
}

fn no_transaction() -> Refusal {
    Refusal::new("ERR this LOCK command cannot be part of a MULTI transaction here; DISCARD it first")
}

/// The Lua library knows exclusive locks alone. The module answers for itself.
fn check_tier1(backend: &Tier1Backend, request: &Request<'_>) -> Result<(), Refusal> {
    let is_other_kind = request.acquire_options().is_some_and(|options| options.kind != LockKind::Exclusive);
    match backend {
        Tier1Backend::Functions | Tier1Backend::Script { .. }
            if is_other_kind || matches!(request, Request::Explain(_)) =>
        {
            Err(errors::tier_kinds_here())
        }
        Tier1Backend::Functions | Tier1Backend::Script { .. } | Tier1Backend::Module => Ok(()),
    }
}

/// What the command does to the sessions of its connection; `opened` is the id of one that it opens.
fn step_of(request: &SessionCommand<'_>, opened: SessionId) -> Option<SessionStep> {
    match request {
        SessionCommand::Open { .. } => Some(SessionStep::Opens(opened)),
        SessionCommand::Close(id) => SessionId::parse(id).map(SessionStep::Closes),
        SessionCommand::KeepAlive(_) | SessionCommand::Info(_) => None,
    }
}

pub(in crate::server) fn kind_of(request: &Request<'_>) -> CommandKind {
    match request {
        Request::Acquire(_) => CommandKind::Acquire,
        Request::MAcquire(_) => CommandKind::MAcquire,
        Request::Release(_) => CommandKind::Release,
        Request::MRelease(_) => CommandKind::MRelease,
        Request::Renew(_) => CommandKind::Renew,
        Request::Convert(_) => CommandKind::Convert,
        Request::Info(_) | Request::Explain(_) | Request::Queue(_) | Request::Scan(_) => CommandKind::Inspect,
        Request::Session(_) | Request::Notify(_) => CommandKind::Session,
        Request::ForceRelease(_) => CommandKind::ForceRelease,
        Request::Cluster(_) => CommandKind::Cluster,
        Request::FenceCheck(_) | Request::FenceGet(_) | Request::FenceCall(_) => CommandKind::Fence,
    }
}

fn node_row(node: &NodeStatus) -> Reply {
    Reply::Map(vec![
        (Reply::Text("id"), Reply::Int(node.id as i64)),
        (Reply::Text("addr"), Reply::bulk(&node.addr)),
        (Reply::Text("role"), Reply::Text(node.role.as_str())),
        (Reply::Text("match"), Reply::Int(node.matched as i64)),
        (Reply::Text("up"), Reply::Int(i64::from(node.up))),
    ])
}

fn owned(query: &Query<'_>) -> OwnedQuery {
    match *query {
        Query::Info { db, resource, sessions } => {
            OwnedQuery::Info { db, resource: Bytes::copy_from_slice(resource), sessions }
        }
        Query::Queue { db, resource } => OwnedQuery::Queue { db, resource: Bytes::copy_from_slice(resource) },
        Query::Explain { db, resource, sessions } => {
            OwnedQuery::Explain { db, resource: Bytes::copy_from_slice(resource), sessions }
        }
        Query::Grant { db, resource, by: GrantOf::Fence(fence) } => {
            OwnedQuery::GrantByFence { db, resource: Bytes::copy_from_slice(resource), fence }
        }
        Query::Grant { db, resource, by: GrantOf::Owner(OwnerIdentity { owner, user }) } => {
            let (resource, owner) = (Bytes::copy_from_slice(resource), Bytes::copy_from_slice(owner));
            OwnedQuery::GrantByOwner { db, resource, owner, user }
        }
        Query::FenceKind { db, resource, fence } => {
            OwnedQuery::FenceKind { db, resource: Bytes::copy_from_slice(resource), fence }
        }
        Query::SessionLocks { id, sessions } => OwnedQuery::SessionLocks { id, sessions },
        Query::Scan { db, cursor, pattern, count } => {
            OwnedQuery::Scan { db, cursor, pattern: pattern.map(Bytes::copy_from_slice), count }
        }
        Query::Session { id, sessions } => OwnedQuery::Session { id, sessions },
        Query::Mark { db, resource } => OwnedQuery::Mark { db, resource: Bytes::copy_from_slice(resource) },
        Query::Contention { count } => OwnedQuery::Contention { count },
        Query::Past { db, resource } => OwnedQuery::Past { db, resource: Bytes::copy_from_slice(resource) },
        Query::Sessions { cursor, count, sessions } => OwnedQuery::Sessions { cursor, count, sessions },
        Query::Settings => OwnedQuery::Settings,
        Query::Setting(name) => OwnedQuery::Setting(name),
    }
}
