//! `CLIENT TRACKING`, `CACHING`, `TRACKINGINFO`, `GETREDIR`: clients that keep copies of keys and want to hear of changes. Rules and
//! texts are Redis's own. Of keys of the Raft keyspace this node tells; of those of an upstream Redis that Redis does.

use super::client::SYNTAX;
use super::{is, wrong_arity};
use crate::events::TrackingTerms;
use crate::server::client::session::{Tracking, TrackingMode};
use crate::server::client::transaction::TransactionTarget;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{IfRefused, InFlight, UpstreamCall};
use bytes::Bytes;
use redfence_core::grammar::errors::shown;
use redfence_core::keyspace::errors as keyspace_errors;
use redfence_core::reply::{Refusal, Reply};

const REDIRECT_UNSUPPORTED: &str =
    "ERR CLIENT TRACKING REDIRECT is not supported by this listener: the upstream Redis does not know the \
                                    clients of this proxy; use RESP3, or the correctness listener";
const BROADCAST_DENIED: &str = "NOPERM CLIENT TRACKING BCAST tells of every key of the upstream Redis: it needs a user who may use all keys";
const SWITCH_BROADCAST: &str =
    "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then \
                                re-enabling it with a different mode.";
const SWITCH_OPT: &str = "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it \
                          with a different mode.";
const CACHING_WHEN: &str =
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
/// Prefixes one client may name.
const PREFIXES_MAX: usize = 1000;
/// Their bytes together: every changed key is compared with each of them.
const PREFIX_BYTES_MAX: usize = 64 * 1024;

/// The words behind `CLIENT TRACKING ON`, before anything is checked against the client's state.
#[derive(Default)]
struct TrackingOptions {
    redirect: Option<u64>,
    prefixes: Vec<Bytes>,
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
}

impl CommandContext {
    /// `CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix …] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`
    pub(super) fn client_tracking(&mut self, switch: &[u8], words: &[&[u8]]) -> Result<Reply, Refusal> {
        let options = self.tracking_options(words)?;
        if is(switch, "ON") {
            self.start_tracking(options)?;
        } else if is(switch, "OFF") {
            self.stop_tracking();
        } else {
            return Err(Refusal::new(SYNTAX));
        }
        Ok(Reply::OK)
    }

    /// `CLIENT TRACKING` where keys are in both stores: this node tells of its own keys, and the upstream Redis, by the client's own
    /// connection to it, of the others. The answer is that Redis's.
    pub(super) fn track_at_upstream(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, _, switch, options @ ..] = argv else { return self.refuse(wrong_arity(b"client|tracking")) };
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let tracked_before = self.client.tracking.is_some();
        if let Err(refusal) = self.client_tracking(switch, options) {
            return self.refuse(refusal);
        }
        self.client.tracks_upstream = self.client.tracking.is_some();
        let if_refused = match tracked_before {
            true => IfRefused::Nothing,
            false => IfRefused::StopTracking,
        };
        let muted = self.client.is_muted();
        let flow =
            self.send_to_upstream(argv, None, UpstreamCall { muted, if_refused, ..UpstreamCall::default() });
        // What comes next depends on the answer.
        self.replies.in_flight = InFlight::Alone;
        flow
    }

    /// What `CLIENT CACHING` said holds for the next command. Told to the upstream Redis when that is the one who answers it; for a
    /// transaction before its `MULTI`, behind which it would be queued.
    pub(in crate::server) fn caching_for_upstream(&self) -> Option<&'static str> {
        if self.transaction_target() == Some(TransactionTarget::Upstream) {
            return None;
        }
        let tracking = self.client.tracking.as_ref().filter(|tracking| tracking.caching)?;
        match tracking.mode {
            _ if !self.client.tracks_upstream => None,
            TrackingMode::OptIn => Some("YES"),
            TrackingMode::OptOut => Some("NO"),
            TrackingMode::All | TrackingMode::Broadcast => None,
        }
    }

    fn tracking_options(&self, words: &[&[u8]]) -> Result<TrackingOptions, Refusal> {
        let mut options = TrackingOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is(word, "BCAST") {
                options.broadcast = true;
            } else if is(word, "OPTIN") {
                options.opt_in = true;
            } else if is(word, "OPTOUT") {
                options.opt_out = true;
            } else if is(word, "NOLOOP") {
                options.no_loop = true;
            } else if is(word, "REDIRECT") && words.len() > 0 {
                if options.redirect.is_some() {
                    return Err(Refusal::new("ERR A client can only redirect to a single other client"));
                }
                options.redirect = Some(self.redirect_target(words.next().copied().unwrap_or_default())?);
            } else if is(word, "PREFIX") && words.len() > 0 {
                let prefix = words.next().copied().unwrap_or_default();
                keyspace_errors::check_pattern(prefix)?;
                options.prefixes.push(Bytes::copy_from_slice(prefix));
            } else {
                return Err(Refusal::new(SYNTAX));
            }
        }
        Ok(options)
    }

    fn redirect_target(&self, word: &[u8]) -> Result<u64, Refusal> {
        let id = std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
        let id = id.ok_or(Refusal::new("ERR value is not an integer or out of range"))?;
        let id = u64::try_from(id).ok().filter(|id| self.server.clients.has(*id));
        id.ok_or(Refusal::new("ERR The client ID you want redirect to does not exist"))
    }

    fn start_tracking(&mut self, options: TrackingOptions) -> Result<(), Refusal> {
        if self.has_upstream() && options.redirect.is_some() {
            return Err(Refusal::new(REDIRECT_UNSUPPORTED));
        }
        if self.has_upstream() && options.broadcast && !self.client.user.all_keys {
            return Err(Refusal::new(BROADCAST_DENIED));
        }
        let refused = |text: &'static str| Err(Refusal::new(text));
        if !options.broadcast && !options.prefixes.is_empty() {
            return refused("ERR PREFIX option requires BCAST mode to be enabled");
        }
        let before = self.client.tracking.as_ref().map(|tracking| tracking.mode);
        if before.is_some_and(|mode| (mode == TrackingMode::Broadcast) != options.broadcast) {
            return refused(SWITCH_BROADCAST);
        }
        if options.broadcast && (options.opt_in || options.opt_out) {
            return refused("ERR OPTIN and OPTOUT are not compatible with BCAST");
        }
        let mode = match (options.opt_in, options.opt_out) {
            (true, true) => return refused("ERR You can't specify both OPTIN mode and OPTOUT mode"),
            (true, false) if before == Some(TrackingMode::OptOut) => return refused(SWITCH_OPT),
            (false, true) if before == Some(TrackingMode::OptIn) => return refused(SWITCH_OPT),
            (true, false) => TrackingMode::OptIn,
            (false, true) => TrackingMode::OptOut,
            (false, false) if options.broadcast => TrackingMode::Broadcast,
            (false, false) => TrackingMode::All,
        };
        let prefixes = match mode {
            TrackingMode::Broadcast => Some(self.all_prefixes(options.prefixes)?),
            TrackingMode::All | TrackingMode::OptIn | TrackingMode::OptOut => None,
        };
        let prefix_bytes = prefixes.iter().flatten().map(|prefix| prefix.len() + 64).sum();
        let terms = TrackingTerms { redirect: options.redirect, no_loop: options.no_loop, prefixes };
        let mailbox = self.server.tracker.start(&self.client.account, terms.clone());
        match (mailbox, &mut self.client.tracking) {
            (Some(mailbox), tracking) => {
                let new =
                    Tracking { mailbox, mode, terms, caching: false, redirect_broken: false, prefix_bytes };
                *tracking = Some(Box::new(new));
            }
            (None, Some(tracking)) => {
                (tracking.mode, tracking.terms) = (mode, terms);
                (tracking.caching, tracking.redirect_broken) = (false, false);
                tracking.prefix_bytes = prefix_bytes;
            }
            (None, None) => unreachable!("the tracker and the client agree"),
        }
        Ok(())
    }

    /// New prefixes join those the client has; none may be the beginning of another. No prefix at all: every key.
    fn all_prefixes(&self, new: Vec<Bytes>) -> Result<Vec<Bytes>, Refusal> {
        let overlap = |one: &Bytes, other: &Bytes| one.starts_with(other) || other.starts_with(one);
        let tracking = self.client.tracking.as_ref();
        let mut all = tracking.and_then(|tracking| tracking.terms.prefixes.clone()).unwrap_or_default();
        for (at, prefix) in new.iter().enumerate() {
            if let Some(old) = all.iter().find(|old| overlap(prefix, old)) {
                return Err(overlaps(prefix, "an existing prefix", old));
            }
            if let Some(other) = new[at + 1..].iter().find(|other| overlap(prefix, other)) {
                return Err(overlaps(prefix, "another provided prefix", other));
            }
        }
        all.extend(new);
        if all.len() > PREFIXES_MAX || all.iter().map(Bytes::len).sum::<usize>() > PREFIX_BYTES_MAX {
            return Err(Refusal::new("ERR a client may name 1000 prefixes of 64 KiB together at most"));
        }
        if all.is_empty() {
            all.push(Bytes::new());
        }
        Ok(all)
    }

    pub(in crate::server) fn stop_tracking(&mut self) {
        self.client.tracks_upstream = false;
        if self.client.tracking.take().is_some() {
            self.server.tracker.stop(self.client.info.id);
        }
    }

    /// `CLIENT CACHING YES|NO`: holds for the next command.
    pub(super) fn client_caching(&mut self, answer: &[u8]) -> Result<Reply, Refusal> {
        let Some(tracking) = &mut self.client.tracking else { return Err(Refusal::new(CACHING_WHEN)) };
        let (needed, text) = if is(answer, "YES") {
            let text = "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
            (TrackingMode::OptIn, text)
        } else if is(answer, "NO") {
            let text = "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";
            (TrackingMode::OptOut, text)
        } else {
            return Err(Refusal::new(SYNTAX));
        };
        if tracking.mode != needed {
            return Err(Refusal::new(text));
        }
        tracking.caching = true;
        Ok(Reply::OK)
    }

    /// A command other than `CLIENT` was given: what `CLIENT CACHING` said is used up. As in Redis, a transaction is one command.
    pub(in crate::server) fn end_caching(&mut self) {
        if self.client.transaction.is_some() {
            return;
        }
        if let Some(tracking) = &mut self.client.tracking {
            tracking.caching = false;
        }
    }

    /// `CLIENT GETREDIR`: -1 without tracking, 0 without redirection.
    pub(super) fn redirect(&self) -> Reply {
        let tracking = self.client.tracking.as_ref();
        Reply::Int(tracking.map_or(-1, |tracking| tracking.terms.redirect.unwrap_or(0) as i64))
    }

    /// `CLIENT TRACKINGINFO`
    pub(super) fn tracking_info(&self) -> Reply {
        let mut flags = vec![if self.client.tracking.is_some() { "on" } else { "off" }];
        let mut prefixes = Vec::new();
        if let Some(tracking) = &self.client.tracking {
            match tracking.mode {
                TrackingMode::All => {}
                TrackingMode::OptIn => flags.push("optin"),
                TrackingMode::OptOut => flags.push("optout"),
                TrackingMode::Broadcast => flags.push("bcast"),
            }
            if tracking.caching {
                flags.push(if tracking.mode == TrackingMode::OptIn { "caching-yes" } else { "caching-no" });
            }
            if tracking.terms.no_loop {
                flags.push("noloop");
            }
            if tracking.redirect_broken {
                flags.push("broken_redirect");
            }
            prefixes.extend(tracking.terms.prefixes.iter().flatten().cloned().map(Reply::Bulk));
        }
        Reply::Map(vec![
            (Reply::Text("flags"), Reply::Set(flags.into_iter().map(Reply::Text).collect())),
            (Reply::Text("redirect"), self.redirect()),
            (Reply::Text("prefixes"), Reply::Array(prefixes)),
        ])
    }
}

/// Redis's own text.
fn overlaps(prefix: &[u8], what: &str, other: &[u8]) -> Refusal {
    Refusal::new(format!(
        "ERR Prefix '{}' overlaps with {what} '{}'. Prefixes for a single client must not overlap.",
        shown(prefix),
        shown(other)
    ))
}
