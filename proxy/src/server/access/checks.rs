//! What a connection asks before it runs a command, delivers a message, or runs a transaction. Part of [`CommandContext`].

use super::audit::AuditEvent;
use crate::acl::check::{is_nested_fence_call, runs_script, Denial};
use crate::acl::log::Refused;
use crate::acl::{commands, script, User};
use crate::server::context::CommandContext;
use crate::server::net::connection::Disconnect;
use bytes::Bytes;
use redfence_core::grammar::fence::FenceCall;
use redfence_core::machine::marks::check_guarded;
use redfence_core::machine::version::SECOND;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::script::routed_rights;
use std::sync::Arc;

const SCRIPT_AT_UPSTREAM: &str = "NOPERM scripts at the upstream Redis run with the rights of this proxy: only a user with allcommands, allkeys \
                                  and allchannels may call or change them";
/// Subcommands of `FUNCTION` that change what the upstream Redis runs: our own library among it, which is called for every client.
const FUNCTION_CHANGES: [&[u8]; 4] = [b"load", b"delete", b"flush", b"restore"];
const CHANGED: &str = "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer \
                       allowed for the following reason: ";

impl CommandContext {
    /// Whether there is nothing to check for this client.
    #[inline]
    pub(in crate::server) fn may_do_everything(&self) -> bool {
        self.client.access_generation == self.server.access.generation() && self.client.user.is_unrestricted()
    }

    /// Takes over changes of users.
    #[inline]
    pub(in crate::server) fn follow_users(&mut self) {
        let generation = self.server.access.generation();
        if self.client.access_generation != generation {
            self.look_user_up(generation);
        }
    }

    #[cold]
    fn look_user_up(&mut self, generation: u64) {
        self.client.access_generation = generation;
        match self.server.access.user(&self.client.user.name) {
            Some(user) => self.client.user = user,
            // Deleted: its connections are being closed.
            None => {
                self.client.user = Arc::new(User::new(&self.client.user.name));
                self.client.authenticated = false;
            }
        }
    }

    /// Whether the client may run this now. A refusal is counted and written down.
    pub(in crate::server) fn check_access(&self, argv: &[&[u8]]) -> Result<(), Refusal> {
        if self.client.user.is_unrestricted() {
            return Ok(());
        }
        self.check_restricted(argv)
    }

    #[cold]
    fn check_restricted(&self, argv: &[&[u8]]) -> Result<(), Refusal> {
        let access = &self.server.access;
        if !self.has_upstream() && commands::find(argv).is_none() {
            // Nobody has such a command: its client gets an error.
            return Ok(());
        }
        if is_nested_fence_call(argv) {
            return check_guarded(&argv[FenceCall::COMMAND_AT..]);
        }
        if let Err(denial) = self.client.user.check(argv, access.upstream_commands().as_deref()) {
            self.note_denial(&denial, argv);
            return Err(denial.refusal());
        }
        if (runs_script(argv) && self.passes_script(argv)) || (self.has_upstream() && changes_functions(argv))
        {
            let name = String::from_utf8_lossy(argv[0]).to_ascii_lowercase();
            self.note_denial(&Denial::Command(name), argv);
            return Err(Refusal::new(SCRIPT_AT_UPSTREAM));
        }
        Ok(())
    }

    fn note_denial(&self, denial: &Denial, argv: &[&[u8]]) {
        let access = &self.server.access;
        let context = if self.client.transaction.is_some() { "multi" } else { "toplevel" };
        let info = &self.client.info;
        access.note_denial(denial, context, &self.client.user.name, || info.line(self.server.now_ms()));
        if let Some(audit) = &access.audit {
            let (_, object) = denial.reason();
            let command = commands::find(argv).map_or("unknown", |known| known.name.as_str());
            audit.write_refusal(AuditEvent {
                event: "denied",
                user: &self.client.user.name,
                client: info.address,
                command,
                arguments: commands::arguments_of(argv),
                result: "NOPERM",
                object,
            });
        }
    }

    /// What goes to the leader with a script; `None` where its calls need no check.
    pub(in crate::server) fn script_rights(&self, argv: &[&[u8]]) -> Result<Option<Vec<u8>>, Refusal> {
        if !runs_script(&argv[..1]) {
            return Ok(None);
        }
        let rights = match self.client.user.is_unrestricted() {
            true => None,
            false => Some(script::rights_of(&self.client.user)?),
        };
        // A leader of cluster version 1 cannot read that.
        if self.has_keys_in_both_tiers() && self.server.tier2.status().cluster_version >= SECOND {
            return Ok(Some(routed_rights(rights.as_deref())));
        }
        Ok(rights)
    }

    /// The leader refused calls of this client's scripts, alone or in a transaction: they are counted here, where the user is known.
    pub(in crate::server) fn note_script_denials(&self, reply: &Reply) {
        if let Reply::Error(refusal) = reply {
            self.note_script_denial(refusal);
        }
        if let Reply::Array(replies) = reply {
            for reply in replies {
                if let Reply::Error(refusal) = reply {
                    self.note_script_denial(refusal);
                }
            }
        }
    }

    fn note_script_denial(&self, refusal: &Refusal) {
        let Some(text) = refusal.0.strip_prefix(script::REFUSED) else { return };
        let reason = match text {
            _ if text.contains("one of the keys") => "key",
            _ if text.contains("one of the channels") => "channel",
            _ => "command",
        };
        let (access, info) = (&self.server.access, &self.client.info);
        let refused = Refused { reason, context: "lua", object: b"script", user: &self.client.user.name };
        access.note_refusal(refused, || info.line(self.server.now_ms()));
        if let Some(audit) = &access.audit {
            audit.write_refusal(AuditEvent {
                event: "denied",
                user: &self.client.user.name,
                client: info.address,
                command: "script",
                arguments: &[],
                result: "NOPERM",
                object: text.as_bytes(),
            });
        }
    }

    /// Whether users have changed since the commands of a transaction were queued, so that they must be checked again.
    fn must_check_transaction(&self) -> bool {
        self.client.transaction.as_ref().is_some_and(|transaction| {
            transaction.access_generation != self.client.access_generation
                && !self.client.user.is_unrestricted()
        })
    }

    /// Before an `EXEC` that the upstream Redis carries out: its commands are not known here.
    pub(in crate::server) fn check_upstream_transaction(&self) -> Result<(), Refusal> {
        match self.must_check_transaction() {
            true => Err(Refusal::new(format!("{CHANGED}the user was changed; send the transaction again"))),
            false => Ok(()),
        }
    }

    /// Which commands of a transaction queued here its user may no longer run, by place. As in Redis the others are carried out.
    pub(in crate::server) fn denied_in_transaction(&self) -> Vec<(usize, Refusal)> {
        let Some(transaction) = self.client.transaction.as_ref().filter(|_| self.must_check_transaction())
        else {
            return Vec::new();
        };
        let denied = |(at, command): (usize, &[Bytes])| {
            let argv: Vec<&[u8]> = command.iter().map(|word| &word[..]).collect();
            let denial = self.client.user.check(&argv, None).err()?;
            self.note_denial(&denial, &argv);
            Some((at, Refusal::new(format!("{CHANGED}{}", denial.text()))))
        };
        transaction.commands().enumerate().filter_map(denied).collect()
    }

    /// Before messages are delivered: who may no longer hear of a channel is disconnected, as in Redis.
    pub(in crate::server) fn check_subscriptions_held(&mut self) -> Result<(), Disconnect> {
        if self.client.access_generation == self.server.access.generation() {
            return Ok(());
        }
        self.follow_users();
        let (user, Some(held)) = (&self.client.user, &self.client.subscriptions) else { return Ok(()) };
        let may_hear = self.client.authenticated
            && held.channels.iter().chain(&held.shards).all(|name| user.may_use_channel(name, false))
            && held.patterns.iter().all(|name| user.may_use_channel(name, true));
        if may_hear {
            return Ok(());
        }
        tracing::info!(
            client = self.client.info.id,
            "closing client: its user lost the right to a channel it listens to"
        );
        Err(Disconnect)
    }
}

/// Functions run with the rights of this proxy, whoever has loaded them.
fn changes_functions(argv: &[&[u8]]) -> bool {
    let [command, subcommand, ..] = argv else { return false };
    command.eq_ignore_ascii_case(b"function")
        && FUNCTION_CHANGES.iter().any(|change| subcommand.eq_ignore_ascii_case(change))
}
