//! Which commands are administrative acts, and how they get into the audit log with their outcome. Part of [`CommandContext`].
//!
//! An act is a command of the category `@admin` (by our tables, or by the `COMMAND` table of the upstream Redis), `FLUSHDB`, or
//! `LOCK.SESSION CLOSE` of a session of others, by itself, behind `FENCE.CALL`, within a transaction (once as `queued`, and once
//! with the outcome of its `EXEC`), or called by a script.
//! What a script on the Raft keyspace called is known when it is applied. What a script of the upstream Redis calls is not known here:
//! that it was run is written down.

use super::audit::{self, AuditDraft, AuditEvent, AuditLog};
use crate::acl::check::runs_script;
use crate::acl::commands;
use crate::node_api::AdminActs;
use crate::server::context::CommandContext;
use crate::server::net::in_flight::{AwaitedReply, SharedUpstreamCalls, UpstreamCall};
use redfence_core::grammar::errors::shown;
use redfence_core::grammar::fence::FenceCall;
use redfence_core::keyspace::acl_table::ADMIN;
use redfence_core::machine::AdminAct;
use redfence_core::script::scripts::{sha1, sha_hex};
use redfence_core::types::{SessionId, SessionScope};
use std::borrow::Cow;
use std::sync::Arc;

/// Acts of one transaction that are named with its outcome.
const NAMES_MAX: usize = 8;

/// An administrative act, as the audit log shows it.
struct Act<'a> {
    command: Cow<'a, str>,
    arguments: &'a [&'a [u8]],
    /// By what it was called, if not by itself.
    by: &'static str,
}

impl CommandContext {
    /// For a request with scripts, where there is an audit log: what they did. Goes with the request. Scripts of users who may not do
    /// any of it are left out: where the outcome is not known a line is written in any case, and these could fill the log with it.
    pub(in crate::server) fn new_admin_acts(&self, has_script: bool) -> Option<Arc<AdminActs>> {
        let may_act = |act: AdminAct| self.client.user.check(&[act.name().as_bytes()], None).is_ok();
        let is_audited = has_script && self.server.access.audit.is_some();
        (is_audited && AdminAct::ALL.into_iter().any(may_act)).then(Arc::default)
    }

    /// Administrative acts queued in the transaction that a command may carry out.
    pub(in crate::server) fn queued_acts(&self) -> Vec<String> {
        match (&self.server.access.audit, &self.client.transaction) {
            (Some(_), Some(transaction)) => transaction.admin_acts.clone(),
            (Some(_) | None, _) => Vec::new(),
        }
    }

    /// Writes an administrative act down with its outcome, where there is an audit log: at once, or when its reply comes.
    /// `awaited_before`: [`CommandContext::awaited_count`] before the command was run. `queued`: see [`CommandContext::queued_acts`].
    pub(in crate::server) fn audit_admin(
        &mut self,
        argv: &[&[u8]],
        awaited_before: usize,
        queued: &[String],
    ) {
        if self.server.access.audit.is_none() {
            return;
        }
        if argv[0].eq_ignore_ascii_case(b"EXEC") {
            self.audit_exec(awaited_before, queued);
        } else if let Some(act) = self.act_of(argv) {
            let draft = self.draft(&act, None);
            if self.audit_outcome(draft, awaited_before) == Some(audit::QUEUED) {
                self.note_queued(&act.command);
            }
        } else if runs_script(argv) {
            self.audit_script(argv, awaited_before);
        }
    }

    fn act_of<'a>(&self, mut argv: &'a [&'a [u8]]) -> Option<Act<'a>> {
        let mut by = "";
        while argv.first()?.eq_ignore_ascii_case(b"FENCE.CALL") {
            argv = argv.get(FenceCall::COMMAND_AT..)?;
            by = "FENCE.CALL";
        }
        if let Some(known) = commands::find(argv) {
            let arguments = commands::arguments_of(argv);
            let is_act = known.is_admin() || self.closes_session_of_others(argv);
            return is_act.then_some(Act { command: Cow::Borrowed(&known.name), arguments, by });
        }
        let name = argv.first()?.to_ascii_lowercase();
        let upstream = self.server.access.upstream_commands()?;
        let is_admin = upstream.get(&*name).is_some_and(|known| known.categories & ADMIN != 0);
        is_admin.then(|| Act { command: Cow::Owned(shown(&name)), arguments: &[], by })
    }

    /// Only who may release every lock by force can. Whose session it is the node that holds it knows: here all count that this
    /// connection has not opened.
    fn closes_session_of_others(&self, argv: &[&[u8]]) -> bool {
        let [name, verb, id] = argv else { return false };
        let is_close = name.eq_ignore_ascii_case(b"LOCK.SESSION") && verb.eq_ignore_ascii_case(b"CLOSE");
        let is_own = || {
            let sessions = self.client.sessions.as_ref();
            SessionId::parse(id).is_some_and(|id| sessions.is_some_and(|sessions| sessions.has(id)))
        };
        // With a reason an operator closes it, whoever owns it.
        let is_act = self.client.reason.is_some()
            || (matches!(self.client.user.session_scope(), SessionScope::All) && !is_own());
        is_close && is_act
    }

    fn draft(&self, act: &Act<'_>, acts: Option<Arc<AdminActs>>) -> AuditDraft {
        let event = AuditEvent {
            event: "admin",
            user: &self.client.user.name,
            client: self.client.info.address,
            command: &act.command,
            arguments: act.arguments,
            result: audit::UNKNOWN,
            object: act.by.as_bytes(),
        };
        let draft = AuditLog::draft(event, acts);
        match &self.client.reason {
            Some(reason) => draft.with_reason(reason),
            None => draft,
        }
    }

    fn note_queued(&mut self, command: &str) {
        if let Some(transaction) = &mut self.client.transaction {
            if transaction.admin_acts.len() < NAMES_MAX
                && !transaction.admin_acts.iter().any(|have| have == command)
            {
                transaction.admin_acts.push(command.to_owned());
            }
        }
    }

    /// A transaction was carried out that holds administrative commands, or scripts that may have called some.
    fn audit_exec(&mut self, awaited_before: usize, queued: &[String]) {
        let acts = self.acts_of_last(awaited_before);
        if acts.is_none() && queued.is_empty() {
            return;
        }
        let arguments: Vec<&[u8]> = queued.iter().map(String::as_bytes).collect();
        let draft = self.draft(&Act { command: Cow::Borrowed("exec"), arguments: &arguments, by: "" }, acts);
        self.audit_outcome(draft, awaited_before);
    }

    fn audit_script(&mut self, argv: &[&[u8]], awaited_before: usize) {
        let is_passed = match self.replies.awaited.back().filter(|_| self.awaits_since(awaited_before)) {
            Some(AwaitedReply::OwnUpstream(_) | AwaitedReply::SharedUpstream(_)) => true,
            Some(AwaitedReply::Call(_) | AwaitedReply::Encoded(_) | AwaitedReply::Subscription(_)) | None => {
                false
            }
        };
        let is_guarded = argv[0].eq_ignore_ascii_case(b"FENCE.CALL");
        let argv = argv.get(if is_guarded { FenceCall::COMMAND_AT } else { 0 }..).unwrap_or(argv);
        let name = shown(&argv[0].to_ascii_lowercase());
        let script = argv.get(1).copied().unwrap_or_default();
        let script = if name.starts_with("eval") && !name.starts_with("evalsha") {
            sha_hex(&sha1(script))
        } else {
            shown(script)
        };
        if is_passed {
            let (user, client) = (&self.client.user.name, self.client.info.address);
            if let Some(audit) = &self.server.access.audit {
                audit.write_repeated(AuditEvent {
                    event: "script",
                    user,
                    client,
                    command: &name,
                    arguments: &[],
                    result: audit::PASSED,
                    object: script.as_bytes(),
                });
            }
        } else if let Some(acts) = self.acts_of_last(awaited_before) {
            let event = AuditEvent {
                event: "admin",
                user: &self.client.user.name,
                client: self.client.info.address,
                command: &name,
                arguments: &[],
                result: audit::UNKNOWN,
                object: script.as_bytes(),
            };
            let draft = AuditLog::draft(event, Some(acts));
            self.audit_outcome(draft, awaited_before);
        }
    }

    /// Grows with every command whose reply is awaited: on the shared connection several of them may be one item of the queue.
    pub(in crate::server) fn awaited_count(&self) -> usize {
        self.replies.awaited.len() + self.upstream.shared.due()
    }

    /// Whether the last reply that is awaited is that of the command just run.
    fn awaits_since(&self, awaited_before: usize) -> bool {
        self.awaited_count() > awaited_before
    }

    /// What the scripts of the request just sent will have done.
    fn acts_of_last(&self, awaited_before: usize) -> Option<Arc<AdminActs>> {
        match self.replies.awaited.back().filter(|_| self.awaits_since(awaited_before)) {
            Some(AwaitedReply::Call(call)) => call.admin_acts.clone(),
            Some(
                AwaitedReply::OwnUpstream(_)
                | AwaitedReply::SharedUpstream(_)
                | AwaitedReply::Encoded(_)
                | AwaitedReply::Subscription(_),
            )
            | None => None,
        }
    }

    /// Answers the outcome where it is known already.
    fn audit_outcome(&mut self, draft: AuditDraft, awaited_before: usize) -> Option<&'static str> {
        let is_awaited = self.awaits_since(awaited_before);
        let is_queued = self.client.transaction.is_some();
        match self.replies.awaited.back_mut().filter(|_| is_awaited) {
            Some(AwaitedReply::Call(call)) => {
                call.audit = Some(Box::new(draft));
                return None;
            }
            Some(AwaitedReply::OwnUpstream(call)) => {
                call.audit = Some(Box::new(draft));
                return is_queued.then_some(audit::QUEUED);
            }
            Some(AwaitedReply::SharedUpstream(shared)) if shared.count == 1 => {
                shared.call.audit = Some(Box::new(draft));
                return None;
            }
            Some(AwaitedReply::SharedUpstream(shared)) => {
                // The last of several alike: from here on it stands by itself.
                shared.count -= 1;
                let call = UpstreamCall { audit: Some(Box::new(draft)), ..UpstreamCall::default() };
                let alone = SharedUpstreamCalls { count: 1, call };
                self.replies.awaited.push_back(AwaitedReply::SharedUpstream(alone));
                return None;
            }
            // A reply that was ready, behind others that are not.
            Some(AwaitedReply::Encoded(_) | AwaitedReply::Subscription(_)) | None => {}
        }
        let audit = self.server.access.audit.as_ref()?;
        match &self.refused_with {
            Some(refusal) => {
                audit.finish(draft, refusal.code());
                None
            }
            None => {
                let result = if is_queued { audit::QUEUED } else { audit::OK };
                audit.finish(draft, result);
                Some(result)
            }
        }
    }
}
