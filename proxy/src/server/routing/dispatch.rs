//! One command: who may give it, and who answers it.

use crate::acl::check::runs_script;
use crate::events::SubscriptionKind;
use crate::resp::request::Excess;
use crate::server::client::session::ReplyMode;
use crate::server::commands::{lock, wrong_arity, Local};
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{AwaitedReply, IfRefused, InFlight, UpstreamCall};
use crate::server::routing::plan::{KeyspacePath, Plan, UpstreamPath};
use crate::server::stats::CommandKind;
use crate::tier2::refusals;
use redfence_core::grammar::errors::shown;
use redfence_core::reply::{Refusal, Reply};
use std::sync::atomic::Ordering;

const NO_AUTH: &str = "NOAUTH Authentication required.";
/// What a denial costs beyond its command, in units of [`CommandContext::work`]: it is counted and in `ACL LOG`.
const DENIAL_WORK: u32 = 8;
/// The same where it is also written to the audit log.
const AUDITED_DENIAL_WORK: u32 = 64;

/// Only what is about the connection, and what shows and changes the cluster.
fn is_served_in_quarantine(local: Option<Local>, name: &[u8]) -> bool {
    match local {
        Some(local) => local != Local::Exec && !local.yields_to_upstream(),
        None => name.eq_ignore_ascii_case(b"LOCK.CLUSTER"),
    }
}

impl CommandContext {
    /// Runs one command. `frame` has its bytes as they came, if they came as an array.
    pub(in crate::server) fn execute(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        let name = argv[0];
        if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
            // As Redis does: a browser was tricked into talking to us.
            tracing::warn!(client = %self.client.info.address, "closing client: HTTP request on the Redis port");
            return Progress::CloseAfterReply;
        }
        let local = Local::find(name);
        self.follow_users();
        if !self.client.authenticated {
            if self.is_beyond_login_commands() {
                return Progress::CloseAfterReply;
            }
            if !local.is_some_and(Local::needs_no_authentication) {
                return self.refuse(Refusal::new(NO_AUTH));
            }
        }
        self.begin_reply_mode();
        self.refused_with = None;
        self.last_command.note(name, argv.get(1).copied());
        let awaited_before = self.awaited_count();
        let queued_acts = if local == Some(Local::Exec) { self.queued_acts() } else { Vec::new() };
        let access = self.check_access(argv);
        let is_allowed = access.is_ok();
        let flow = if let Err(refusal) = access {
            self.work += match self.server.access.audit {
                Some(_) => AUDITED_DENIAL_WORK,
                None => DENIAL_WORK,
            };
            self.refuse_and_abort(refusal)
        } else if self.server.tier2.is_quarantined() && !is_served_in_quarantine(local, name) {
            // Also what the upstream would answer: this node may have other routes than the rest of the cluster.
            self.reply(&refusals::quarantined());
            Progress::Done
        } else if self.client.is_listening_only() && !local.is_some_and(Local::is_allowed_while_listening) {
            self.refuse(listening(name))
        } else if self.client.monitors && !matches!(local, Some(Local::Ping | Local::Quit | Local::Reset)) {
            self.refuse(monitoring(name))
        } else if self.client.transaction.is_some() && !local.is_some_and(Local::is_never_queued) {
            self.command_in_transaction(local, argv, frame)
        } else {
            match self.plan(local, argv) {
                Ok(plan) => self.carry_out(plan, argv, frame),
                Err(refusal) => self.refuse(refusal),
            }
        };
        if flow != Progress::Stalled {
            self.note_command();
            if is_allowed && self.server.access.audit.is_some() {
                self.audit_admin(argv, awaited_before, &queued_acts);
            }
            if local != Some(Local::Client) {
                self.end_caching();
            }
        } else {
            self.put_back_reply_mode();
        }
        flow
    }

    /// `CLIENT REPLY SKIP` is for the command that begins now.
    fn begin_reply_mode(&mut self) {
        if self.client.reply_mode == ReplyMode::SkipNext {
            self.client.reply_mode = ReplyMode::SkipThis;
        }
    }

    /// The command could not begin yet.
    fn put_back_reply_mode(&mut self) {
        if self.client.reply_mode == ReplyMode::SkipThis {
            self.client.reply_mode = ReplyMode::SkipNext;
        }
    }

    fn carry_out(&mut self, plan: Plan<'_>, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        self.command = kind_of_plan(&plan, argv);
        match plan {
            Plan::Local(local) => self.local_command(local, argv, frame),
            Plan::Lock(plan) => self.lock_command(plan, argv, frame),
            Plan::Upstream(UpstreamPath::Own) => self.pass_on_own_connection(argv, frame),
            Plan::Upstream(UpstreamPath::Shared) => {
                let call = UpstreamCall { muted: self.client.is_muted(), ..UpstreamCall::default() };
                self.pass_shareable(argv, frame, call)
            }
            Plan::BothStores => self.script_on_both(argv),
            Plan::Keyspace(KeyspacePath::Read) => self.keyspace_read(argv),
            Plan::Keyspace(KeyspacePath::ReadScript) => self.keyspace_script(argv),
            Plan::Keyspace(KeyspacePath::Write { is_routed }) => self.submit_to_keyspace(argv, is_routed),
            Plan::Server => self.server_command(argv),
        }
    }

    fn note_command(&mut self) {
        if self.client.reply_mode == ReplyMode::SkipThis {
            self.client.reply_mode = ReplyMode::On;
        }
        if let Some(sessions) = &self.client.sessions {
            self.server.session_keepalive.note_command(sessions, self.read_us / 1_000);
        }
        self.commands_run += 1;
    }

    /// Once for all commands that came together: a look at the clock and a shared counter for each would be felt in a pipeline.
    pub(in crate::server) fn note_commands(&mut self) {
        if self.commands_run > 0 {
            self.server.stats.commands.fetch_add(u64::from(self.commands_run), Ordering::Relaxed);
            let now_ms = self.read_us / 1_000;
            self.client.info.seen_ms.store(now_ms, Ordering::Relaxed);
            self.show_state();
            self.commands_run = 0;
        }
    }

    fn local_command(&mut self, local: Local, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        // These change how replies look or who is asked: everything before them must be done.
        let alone = matches!(
            local,
            Local::Acl
                | Local::Auth
                | Local::Hello
                | Local::Monitor
                | Local::Select
                | Local::Reset
                | Local::Subscribe
                | Local::PSubscribe
                | Local::Unsubscribe
                | Local::PUnsubscribe
                | Local::ShardSubscribe
        );
        if alone && !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        match local {
            Local::Acl => self.acl(argv),
            Local::Auth => self.auth(argv),
            Local::Client => self.client_command(argv),
            Local::Cluster if argv.len() == 1 => self.refuse(wrong_arity(argv[0])),
            Local::Cluster => self.refuse(Refusal::new("ERR This instance has cluster support disabled")),
            Local::Command => self.command(argv, frame),
            Local::Config => self.config(argv),
            Local::Discard => self.discard(argv, frame),
            Local::Echo => self.echo(argv),
            Local::Exec => self.exec(argv, frame),
            Local::Hello => self.hello(argv),
            Local::Info => self.info(argv),
            Local::Monitor if self.has_upstream() && argv[0].eq_ignore_ascii_case(b"MONITOR") => {
                self.monitor(argv)
            }
            Local::ShardSubscribe => self.shard_subscription(argv),
            Local::Monitor => {
                let name = shown(&argv[0].to_ascii_uppercase());
                self.refuse(Refusal::new(format!(
                    "ERR {name} is not supported by this proxy; ask the Redis itself"
                )))
            }
            Local::Multi => self.multi(argv, frame),
            Local::Ping => self.ping(argv),
            Local::Subscribe => self.subscribe(SubscriptionKind::Channel, argv),
            Local::PSubscribe => self.subscribe(SubscriptionKind::Pattern, argv),
            Local::Unsubscribe => self.unsubscribe(SubscriptionKind::Channel, argv),
            Local::PUnsubscribe => self.unsubscribe(SubscriptionKind::Pattern, argv),
            Local::Publish => self.publish(argv),
            Local::PubSub => self.pubsub(argv),
            Local::Quit => self.quit(),
            Local::Reset => self.reset(),
            Local::Select => self.select(argv),
            Local::Time => self.time(argv),
            Local::Unwatch => self.unwatch(argv, frame),
            Local::Watch => self.watch(argv, frame),
        }
    }

    /// `MONITOR` at the upstream Redis: all that it says from then on is for the client.
    fn monitor(&mut self, argv: &[&[u8]]) -> Progress {
        if argv.len() != 1 {
            return self.refuse(wrong_arity(argv[0]));
        }
        let call = UpstreamCall {
            muted: self.client.is_muted(),
            if_refused: IfRefused::StopMonitoring,
            ..UpstreamCall::default()
        };
        let flow = self.send_to_upstream(argv, None, call);
        if let (Progress::Done, Some(connection)) = (flow, self.own_connection()) {
            connection.set_monitors(true);
            self.client.monitors = true;
            // Whether what comes next is allowed depends on the answer.
            self.replies.in_flight = InFlight::Alone;
        }
        flow
    }

    /// Sends a command to the upstream Redis, on the client's own connection; its reply goes to the client as it comes.
    pub(in crate::server) fn send_to_upstream(
        &mut self,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
        call: UpstreamCall,
    ) -> Progress {
        if !self.can_join(InFlight::OwnUpstream) {
            return Progress::Stalled;
        }
        self.announce_caching();
        let Some(connection) = self.own_connection() else {
            return self.refuse(Refusal::new("ERR no upstream Redis is configured (--redis)"));
        };
        match frame {
            Some(frame) => connection.send(frame),
            None => connection.send_words(argv),
        }
        self.replies.in_flight = InFlight::OwnUpstream;
        if call.waits {
            self.client.begin_wait();
        }
        self.replies.awaited.push_back(AwaitedReply::OwnUpstream(call));
        Progress::Done
    }

    pub(in crate::server) fn pass_to_upstream(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        let call = UpstreamCall { muted: self.client.is_muted(), ..UpstreamCall::default() };
        self.send_to_upstream(argv, frame, call)
    }

    /// What `CLIENT CACHING` said goes before the command on the client's own connection.
    fn announce_caching(&mut self) {
        if let (Some(caching), Some(connection)) = (self.caching_for_upstream(), self.own_connection()) {
            connection.send_ours(&["CLIENT", "CACHING", caching]);
        }
    }

    /// Whether a large command may go to the upstream Redis. `argv` has all words up to its last key; `excess`: why Redfence itself does
    /// not answer it.
    pub(in crate::server) fn admit_large(
        &mut self,
        argv: &[&[u8]],
        excess: Excess,
    ) -> Result<Progress, Refusal> {
        if self.server.tier2.is_quarantined() {
            if let Reply::Error(refusal) = refusals::quarantined() {
                return Err(refusal);
            }
        }
        if self.client.is_listening_only() {
            return Err(listening(argv[0]));
        }
        if self.client.monitors {
            return Err(monitoring(argv[0]));
        }
        self.follow_users();
        self.check_access(argv)?;
        self.check_large(argv, excess)?;
        self.begin_reply_mode();
        if self.begin_at_upstream() == Progress::Stalled {
            self.put_back_reply_mode();
            return Ok(Progress::Stalled);
        }
        self.last_command.note(argv[0], argv.get(1).copied());
        self.announce_caching();
        self.client.watches_upstream |= argv[0].eq_ignore_ascii_case(b"WATCH");
        self.replies.in_flight = InFlight::OwnUpstream;
        let (muted, awaited_before) = (self.client.is_muted(), self.awaited_count());
        self.replies
            .awaited
            .push_back(AwaitedReply::OwnUpstream(UpstreamCall { muted, ..UpstreamCall::default() }));
        self.audit_admin(argv, awaited_before, &[]);
        self.note_command();
        self.end_caching();
        Ok(Progress::Done)
    }

    /// A large command is refused; the rest of it is dropped as it comes.
    pub(in crate::server) fn refuse_large(&mut self, refusal: Refusal) {
        self.begin_reply_mode();
        self.refuse_and_abort(refusal);
        self.note_command();
        self.end_caching();
    }
}

fn monitoring(name: &[u8]) -> Refusal {
    let name = shown(&name.to_ascii_lowercase());
    Refusal::new(format!("ERR Can't execute '{name}': only PING / QUIT / RESET are allowed behind MONITOR"))
}

fn kind_of_plan(plan: &Plan<'_>, argv: &[&[u8]]) -> CommandKind {
    match plan {
        Plan::Lock(plan) => lock::kind_of(&plan.request),
        Plan::Keyspace(KeyspacePath::Read) => CommandKind::KeyRead,
        Plan::Keyspace(KeyspacePath::Write { .. }) if !runs_script(argv) => CommandKind::KeyWrite,
        Plan::BothStores | Plan::Keyspace(KeyspacePath::ReadScript | KeyspacePath::Write { .. }) => {
            CommandKind::Script
        }
        Plan::Local(Local::Exec) => CommandKind::Transaction,
        Plan::Local(_) | Plan::Upstream(_) | Plan::Server => CommandKind::Other,
    }
}

/// Redis's own text.
fn listening(name: &[u8]) -> Refusal {
    let name = shown(&name.to_ascii_lowercase());
    Refusal::new(format!(
        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    ))
}
