//! `SUBSCRIBE`, `PSUBSCRIBE`, `UNSUBSCRIBE`, `PUNSUBSCRIBE`, `PUBLISH`, `PUBSUB`.
//!
//! Every client listens to this node's hub. With an upstream Redis its subscriptions are made there too, and are confirmed when
//! that Redis has confirmed: then no message published later can be missed.
//!
//! What is published on the correctness tier goes through the log, and every node hands it to its own listeners as it applies.
//! As in Redis, a message is delivered at most once, and the number in the reply is that of receivers at this node. With an upstream
//! Redis it is that Redis's number, and this node's own listeners are counted one by one; those of another proxy count as one.

use super::{help, is, unknown_subcommand, wrong_arity, Local};
use crate::events::{
    steps_max, PatternLimit, ReceiverCount, SubscriberInbox, SubscriptionKind, PATTERN_STEPS_PER_CLIENT_MAX,
};
use crate::server::client::session::{name_bytes, Subscriptions};
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{
    AfterReply, AwaitedReply, AwaitedSubscription, IfAbandoned, InFlight, Source, UpstreamCall,
};
use crate::tier1::subscriber::NotSubscribed;
use crate::tier1::upstream::Upstream;
use bytes::Bytes;
use redfence_core::keyspace::errors;
use redfence_core::reply::{Refusal, Reply, Sink};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Channels and patterns one client may listen to.
const SUBSCRIPTIONS_MAX: usize = 10_000;
/// Bytes of names one client may listen to, and of patterns among them: every message is matched against every pattern.
const SUBSCRIPTION_BYTES_MAX: usize = 1024 * 1024;
const PATTERN_BYTES_PER_CLIENT_MAX: usize = 64 * 1024;
/// Steps of matching patterns that count as one unit of a connection's turn: about a microsecond.
const STEPS_PER_WORK: u64 = 256;

impl CommandContext {
    pub(in crate::server) fn subscribe(&mut self, kind: SubscriptionKind, argv: &[&[u8]]) -> Progress {
        if argv.len() == 1 {
            return self.refuse(wrong_arity(argv[0]));
        }
        let names: Vec<Bytes> = argv[1..].iter().map(|name| Bytes::copy_from_slice(name)).collect();
        if self.client.subscription_count() + names.len() > SUBSCRIPTIONS_MAX {
            return self
                .refuse(Refusal::new("ERR a client may listen to 10000 channels and patterns at most"));
        }
        if let Err(refusal) = self.check_subscriptions(kind, &names) {
            return self.refuse(refusal);
        }
        let (hub, account) = (&self.server.hub, Arc::clone(&self.client.account));
        let subscriptions = self.client.subscriptions.get_or_insert_with(|| {
            Box::new(Subscriptions {
                inbox: SubscriberInbox::open(account),
                channels: BTreeSet::new(),
                patterns: BTreeSet::new(),
                shards: BTreeSet::new(),
                held_bytes: 0,
            })
        });
        let mut new_names = BTreeSet::new();
        for name in &names {
            hub.subscribe(&subscriptions.inbox, kind, name);
            if !subscriptions.names(kind).contains(name) {
                new_names.insert(name.clone());
            }
        }
        let new_names: Vec<Bytes> = new_names.into_iter().collect();
        match &self.server.subscriber {
            Some(subscriber) if !new_names.is_empty() => {
                let confirmed = subscriber.subscribe(kind, &new_names);
                self.replies.in_flight = InFlight::Alone;
                self.replies.awaited.push_back(AwaitedReply::Subscription(AwaitedSubscription {
                    kind,
                    names,
                    new_names,
                    confirmed,
                }));
            }
            Some(_) | None => self.confirm(kind, &names),
        }
        Progress::Done
    }

    /// `SSUBSCRIBE` and `SUNSUBSCRIBE`: shard channels are those of the upstream Redis.
    pub(in crate::server) fn shard_subscription(&mut self, argv: &[&[u8]]) -> Progress {
        let upstream = self.server.upstream.as_ref().filter(|_| self.has_upstream());
        let Some(upstream) = upstream else {
            return self.refuse(Refusal::new("ERR shard channels are those of an upstream Redis, and this listener has none; use SUBSCRIBE"));
        };
        let major = upstream.version().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        if major.is_none_or(|major| major < 7) {
            return self.refuse(Refusal::new(
                "ERR shard channels need an upstream Redis of version 7 or later that is reached",
            ));
        }
        match is(argv[0], "SSUBSCRIBE") {
            true => self.subscribe(SubscriptionKind::Shard, argv),
            false => self.unsubscribe(SubscriptionKind::Shard, argv),
        }
    }

    /// Whether the names are short enough, and not too many bytes together with those there are.
    fn check_subscriptions(&self, kind: SubscriptionKind, names: &[Bytes]) -> Result<(), Refusal> {
        let new: usize = names.iter().map(|name| name_bytes(name)).sum();
        let (channels, patterns) = self.client.subscriptions.as_ref().map_or((0, 0), |has| has.bytes());
        match kind {
            SubscriptionKind::Channel | SubscriptionKind::Shard => {
                names.iter().try_for_each(|name| errors::check_channel(name))?;
            }
            SubscriptionKind::Pattern => {
                names.iter().try_for_each(|name| errors::check_pattern(name))?;
                self.server.hub.check_room_for_patterns(names).map_err(|limit| match limit {
                    PatternLimit::Bytes => Refusal::new(
                        "ERR the clients of this node listen to 4 MiB of patterns already, the limit for one node",
                    ),
                    PatternLimit::Steps => Refusal::new(
                        "ERR the clients of this node listen to too many patterns with '*' before the end; use channels, or patterns with one '*' at the end",
                    ),
                })?;
                let held = self.client.subscriptions.as_ref().map(|has| &has.patterns);
                let is_new = |name: &&Bytes| held.is_none_or(|held| !held.contains(*name));
                let more: BTreeSet<&Bytes> = names.iter().filter(is_new).collect();
                let more: u64 = more.into_iter().map(|name| steps_max(name)).sum();
                let held: u64 = held.into_iter().flatten().map(|name| steps_max(name)).sum();
                if more > 0 && held + more > PATTERN_STEPS_PER_CLIENT_MAX {
                    return Err(Refusal::new(
                        "ERR too many or too long patterns with '*' before the end for one client; use channels, or patterns with one '*' at the end",
                    ));
                }
                if patterns + new > PATTERN_BYTES_PER_CLIENT_MAX {
                    return Err(Refusal::new(
                        "ERR patterns exceed the limit of 64 KiB for one client, each counted with 64 bytes more; unsubscribe from some",
                    ));
                }
            }
        }
        if channels + patterns + new > SUBSCRIPTION_BYTES_MAX {
            return Err(Refusal::new(
                "ERR subscriptions exceed the limit of 1 MiB for one client, each counted with 64 bytes more; unsubscribe from some",
            ));
        }
        Ok(())
    }

    /// Tells the client, one message a name.
    pub(in crate::server) fn confirm(&mut self, kind: SubscriptionKind, names: &[Bytes]) {
        let (_, verb) = kind.subscribe_verbs();
        for name in names {
            if let Some(subscriptions) = &mut self.client.subscriptions {
                subscriptions.names(kind).insert(name.clone());
            }
            self.tell(kind, verb, Some(name));
        }
        self.note_subscriptions();
    }

    /// The upstream Redis could not be asked, or has refused: nothing was subscribed.
    pub(in crate::server) fn refuse_subscription(
        &mut self,
        awaited: &AwaitedSubscription,
        reason: NotSubscribed,
    ) {
        self.take_back_subscription(awaited);
        self.refuse(Refusal::new(match reason {
            NotSubscribed::Unavailable(reason) => {
                format!("UNAVAILABLE {reason}; nothing was subscribed; retry")
            }
            NotSubscribed::Refused(error) => error,
        }));
        self.note_subscriptions();
    }

    /// What `SUBSCRIBE` asked for before it was confirmed is not wanted any more.
    pub(in crate::server) fn take_back_subscription(&self, awaited: &AwaitedSubscription) {
        let Some(subscriptions) = &self.client.subscriptions else { return };
        for name in &awaited.new_names {
            self.server.hub.unsubscribe(&subscriptions.inbox, awaited.kind, name);
            if let Some(subscriber) = &self.server.subscriber {
                subscriber.unsubscribe(awaited.kind, name);
            }
        }
    }

    pub(in crate::server) fn unsubscribe(&mut self, kind: SubscriptionKind, argv: &[&[u8]]) -> Progress {
        let names = &argv[1..];
        let (_, verb) = kind.unsubscribe_verbs();
        let names: Vec<Bytes> = match &mut self.client.subscriptions {
            Some(subscriptions) if names.is_empty() => subscriptions.names(kind).iter().cloned().collect(),
            Some(_) | None => names.iter().map(|name| Bytes::copy_from_slice(name)).collect(),
        };
        if names.is_empty() {
            self.tell(kind, verb, None);
        }
        for name in &names {
            self.leave(kind, name);
            self.tell(kind, verb, Some(name));
        }
        self.note_subscriptions();
        Progress::Done
    }

    fn leave(&mut self, kind: SubscriptionKind, name: &Bytes) {
        let Some(subscriptions) = &mut self.client.subscriptions else { return };
        if subscriptions.names(kind).remove(name) {
            self.server.hub.unsubscribe(&subscriptions.inbox, kind, name);
            if let Some(subscriber) = &self.server.subscriber {
                subscriber.unsubscribe(kind, name);
            }
        }
    }

    /// One confirmation: verb, name, how many subscriptions there are now.
    fn tell(&mut self, kind: SubscriptionKind, verb: &str, name: Option<&[u8]>) {
        let count = self.client.subscriptions.as_ref().map_or(0, |held| held.count_of(kind)) as i64;
        self.reply_with(|encoder| {
            encoder.push(3);
            encoder.bulk(verb.as_bytes());
            match name {
                Some(name) => encoder.bulk(name),
                None => encoder.nil(),
            }
            encoder.int(count);
        });
    }

    fn note_subscriptions(&mut self) {
        let count = self.client.subscription_count();
        let held = self.client.subscriptions.as_ref();
        let (patterns, shards) = held.map_or((0, 0), |held| (held.patterns.len(), held.shards.len()));
        self.client.info.subscriptions.store(count, Ordering::Relaxed);
        self.client.info.patterns.store(patterns, Ordering::Relaxed);
        self.client.info.shards.store(shards, Ordering::Relaxed);
        match &mut self.client.subscriptions {
            Some(_) if count == 0 => self.client.subscriptions = None,
            Some(subscriptions) => {
                let (channels, patterns) = subscriptions.bytes();
                subscriptions.held_bytes = channels + patterns;
            }
            None => {}
        }
    }

    /// The connection ends or is reset: nobody listens here any more.
    pub(in crate::server) fn drop_subscriptions(&mut self) {
        let Some(mut subscriptions) = self.client.subscriptions.take() else { return };
        for kind in SubscriptionKind::ALL {
            for name in std::mem::take(subscriptions.names(kind)) {
                self.server.hub.unsubscribe(&subscriptions.inbox, kind, &name);
                if let Some(subscriber) = &self.server.subscriber {
                    subscriber.unsubscribe(kind, &name);
                }
            }
        }
        self.client.info.subscriptions.store(0, Ordering::Relaxed);
        self.client.info.patterns.store(0, Ordering::Relaxed);
        self.client.info.shards.store(0, Ordering::Relaxed);
    }

    /// `PUBLISH channel message` on the correctness tier: through the log, to the listeners of all nodes.
    pub(in crate::server) fn publish(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, channel, _] = argv else { return self.refuse(wrong_arity(argv[0])) };
        if self.has_upstream() {
            if !self.can_join(InFlight::OwnUpstream) {
                return Progress::Stalled;
            }
            let counted = self.server.hub.receivers_unknown_to_upstream(channel);
            let (muted, added) = (self.client.is_muted(), self.charge_count(counted));
            return self.send_to_upstream(
                argv,
                None,
                UpstreamCall { muted, added, ..UpstreamCall::default() },
            );
        }
        if let Err(refusal) = errors::check_channel(channel) {
            return self.refuse(refusal);
        }
        // Counted once: a command that stalls comes again and again.
        if !self.can_join(InFlight::Tier2) {
            return Progress::Stalled;
        }
        let receivers = self.server.hub.receivers_of(channel);
        let receivers = self.charge_count(receivers);
        // Routes are about keys and locks; where there is an upstream, it is the one who publishes.
        let flow = self.submit_to_keyspace(argv, false);
        if let (Progress::Done, Some(AwaitedReply::Call(call))) = (flow, self.replies.awaited.back_mut()) {
            call.after_reply = AfterReply::Say(Reply::Int(receivers as i64));
        }
        flow
    }

    /// What it took to count counts for this client's turn. Answers the number of receivers.
    fn charge_count(&mut self, counted: ReceiverCount) -> usize {
        self.work += (counted.steps / STEPS_PER_WORK) as u32;
        counted.receivers
    }

    /// Whether the upstream Redis would answer with a number of receivers that counts those of this node as one.
    pub(in crate::server) fn counts_receivers(&self, local: Local, argv: &[&[u8]]) -> bool {
        let hub = &self.server.hub;
        match argv {
            [_, channel, _] if local == Local::Publish => hub.may_have_receivers_unknown_to_upstream(channel),
            [_, verb, channels @ ..] if local == Local::PubSub => {
                is(verb, "NUMSUB") && channels.iter().any(|channel| hub.listeners_of(channel) > 1)
            }
            _ => false,
        }
    }

    /// `PUBSUB NUMSUB` where the upstream Redis knows of the listeners elsewhere, and this node of its own.
    fn count_at_upstream(&mut self, upstream: Arc<Upstream>, argv: &[&[u8]]) -> Progress {
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let argv: Vec<Bytes> = argv.iter().map(|word| Bytes::copy_from_slice(word)).collect();
        let (sender, receiver) = oneshot::channel();
        let hub = Arc::clone(&self.server.hub);
        tokio::spawn(async move {
            let mut reply = upstream.ask(&argv).await;
            if let Reply::Array(pairs) = &mut reply {
                for pair in pairs.chunks_exact_mut(2) {
                    if let [Reply::Bulk(name), Reply::Int(count @ 1..)] = pair {
                        *count += hub.listeners_of(name).saturating_sub(1) as i64;
                    }
                }
            }
            // The client may be gone: then nobody misses the answer.
            let _ = sender.send(reply);
        });
        self.await_call(InFlight::Alone, Source::Channel(receiver), false, IfAbandoned::Nothing);
        Progress::Done
    }

    /// `PUBSUB CHANNELS [pattern]`: in a task of its own, which ends with its client. Many names may have to be matched.
    fn pubsub_channels(&mut self, pattern: Option<&[u8]>) -> Progress {
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let (hub, pattern) = (Arc::clone(&self.server.hub), pattern.map(Bytes::copy_from_slice));
        let (mut sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let names = tokio::select! {
                names = hub.channels(pattern.as_deref()) => names,
                () = sender.closed() => return,
            };
            let too_many = "ERR the names of all channels exceed 8 MiB, the limit of a reply; give a pattern";
            // The client may be gone: then nobody misses the answer.
            let _ = sender.send(match names {
                Some(names) => Reply::Array(names.into_iter().map(Reply::Bulk).collect()),
                None => Reply::Error(Refusal::new(too_many)),
            });
        });
        self.await_call(InFlight::Alone, Source::Node(receiver), false, IfAbandoned::Nothing);
        Progress::Done
    }

    /// `PUBSUB CHANNELS [pattern]`, `NUMSUB [channel…]`, `NUMPAT`
    pub(in crate::server) fn pubsub(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, verb, rest @ ..] = argv else { return self.refuse(wrong_arity(argv[0])) };
        if let Some(upstream) = self.server.upstream.clone().filter(|_| self.has_upstream()) {
            return self.count_at_upstream(upstream, argv);
        }
        if let Err(refusal) = rest.iter().try_for_each(|name| errors::check_channel(name)) {
            return self.refuse(refusal);
        }
        let hub = &self.server.hub;
        let reply = match rest {
            [] | [_] if is(verb, "CHANNELS") => return self.pubsub_channels(rest.first().copied()),
            _ if is(verb, "NUMSUB") => {
                let pair = |name: &&[u8]| [Reply::bulk(name), Reply::Int(hub.listeners_of(name) as i64)];
                Reply::Array(rest.iter().flat_map(pair).collect())
            }
            [] if is(verb, "NUMPAT") => Reply::Int(hub.pattern_count() as i64),
            [] if is(verb, "HELP") => help::lines("PUBSUB"),
            _ => return self.refuse(unknown_subcommand("PUBSUB", verb)),
        };
        self.reply(&reply);
        Progress::Done
    }
}
