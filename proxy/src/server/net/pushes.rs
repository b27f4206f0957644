//! What a client is told without having asked: messages of channels, and keys that have changed. Part of [`CommandContext`].

use crate::events::{Invalidation, LossNotice, PubSubMessage, SubscriberDelivery, INVALIDATE_CHANNEL};
use crate::resp::encode::{Encoder, Protocol};
use crate::server::client::session::TrackingMode;
use crate::server::context::CommandContext;
use crate::server::net::connection::{Disconnect, PASSING_BYTES_MAX};
use crate::server::net::in_flight::AwaitedReply;
use redfence_core::reply::Sink;
use std::task::{Context, Poll};

impl CommandContext {
    /// All that there may be. Most clients wait for nothing of it.
    #[inline]
    pub(in crate::server) fn poll_pushes(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let mut moved = self.client.subscriptions.is_some() && self.poll_inbox(context)?;
        moved |= self.client.tracking.is_some() && self.poll_mailbox(context);
        moved |= self.client.losses.is_some() && self.poll_losses(context)?;
        Ok(moved)
    }

    fn poll_inbox(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        if self.replies.awaited.iter().any(|item| matches!(item, AwaitedReply::Subscription(_))) {
            return Ok(false);
        }
        if self.upstream.own.as_ref().is_some_and(|connection| connection.is_inside_reply())
            || self.upstream.shared.is_inside_reply()
        {
            return Ok(false);
        }
        self.check_subscriptions_held()?;
        let mut moved = false;
        let protocol = self.client.protocol;
        loop {
            let has_room = self.has_room_for_pushes();
            let Some(subscriptions) = &mut self.client.subscriptions else { break };
            if !has_room {
                subscriptions.inbox.poll_overflow(context);
            }
            if subscriptions.inbox.overflowed() {
                tracing::info!(
                    client = self.client.info.id,
                    "closing client: subscriber output buffer limit reached"
                );
                return Err(Disconnect);
            }
            if !has_room {
                break;
            }
            let Poll::Ready(Some(delivery)) = subscriptions.inbox.poll(context) else { break };
            let mut encoder = Encoder { out: &mut self.replies.out, protocol };
            match delivery {
                SubscriberDelivery::Message(message) => encode_message(&mut encoder, &message),
                // Tracked by another client, perhaps one with other rights.
                SubscriberDelivery::Invalidated(Some(key)) if !self.client.user.may_read_key(&key) => {}
                SubscriberDelivery::Invalidated(key) => encode_redirected(&mut encoder, key.as_deref()),
                // It must know that it missed something, as it would if a Redis had hung up.
                SubscriberDelivery::Missed => return Err(Disconnect),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Keys the client keeps that have changed. Only RESP3 has words for it: as in Redis, a RESP2 client is told nothing.
    fn poll_mailbox(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        self.follow_users();
        while self.has_room_for_pushes() {
            let Some(tracking) = &mut self.client.tracking else { break };
            let Poll::Ready(invalidation) = tracking.mailbox.poll(context) else { break };
            tracking.redirect_broken |= matches!(invalidation, Invalidation::RedirectBroken(_));
            // Of keys it never read it hears only where it may read them. Names are told to nobody else.
            let is_hidden = match &invalidation {
                Invalidation::Key(key) => {
                    tracking.mode == TrackingMode::Broadcast && !self.client.user.may_read_key(key)
                }
                Invalidation::Everything | Invalidation::RedirectBroken(_) => false,
            };
            let protocol = self.client.protocol;
            if protocol == Protocol::Resp3 && !is_hidden {
                self.push_behind_replies(|out| {
                    encode_invalidation(&mut Encoder { out, protocol }, &invalidation)
                });
            }
            moved = true;
        }
        moved
    }

    /// Locks that the client has lost, or may have. RESP2 has no pushes: such a client subscribes to `__lost__:<resource>`.
    fn poll_losses(&mut self, context: &mut Context<'_>) -> Result<bool, Disconnect> {
        let mut moved = false;
        // Also where it has no room for more: it is not to believe that it heard everything.
        if !self.has_room_for_pushes() {
            self.client.losses.iter().for_each(|inbox| inbox.poll_overflow(context));
        }
        if self.client.losses.as_ref().is_some_and(|inbox| inbox.overflowed()) {
            tracing::info!(client = self.client.info.id, "closing client: too many lost locks not read");
            return Err(Disconnect);
        }
        while self.has_room_for_pushes() {
            let Some(inbox) = &mut self.client.losses else { break };
            let Poll::Ready(notice) = inbox.poll(context) else { break };
            self.check_subscriptions_held()?;
            // It must know that it does not hear everything.
            let Some(mut notice) = notice else { return Err(Disconnect) };
            let protocol = self.client.protocol;
            if protocol == Protocol::Resp3 && self.may_hear(&mut notice) {
                self.push_behind_replies(|out| encode_loss(&mut Encoder { out, protocol }, &notice));
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Whether the user that the client has by now may hear of this loss. What it may not see of it is taken out.
    fn may_hear(&self, notice: &mut LossNotice) -> bool {
        let user = &self.client.user;
        notice.successor = notice.successor.filter(|_| user.may_read_key(&notice.resource));
        self.client.authenticated
            && user.session_scope().includes(notice.user)
            && user.may_hear_of_loss(&notice.resource)
    }

    /// More wait in the mailbox, which has a limit of its own.
    fn has_room_for_pushes(&self) -> bool {
        self.replies.encoded_bytes + self.replies.unsent_bytes() < PASSING_BYTES_MAX
    }

    /// Behind the answers in flight: one of them may be the old value of a key that has changed since, and a client must not be
    /// told to drop what it has yet to get. A command that waits reads nothing, and holds up nothing.
    fn push_behind_replies(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at_once =
            self.replies.awaited.iter().all(|item| matches!(item, AwaitedReply::Call(call) if call.waits));
        if at_once {
            write(&mut self.replies.out);
        } else {
            self.replies.write_behind(write);
        }
    }
}

fn encode_message(encoder: &mut Encoder<'_>, message: &PubSubMessage) {
    match &message.pattern {
        None => {
            encoder.push(3);
            encoder.bulk(if message.is_shard { b"smessage" } else { b"message" });
        }
        Some(pattern) => {
            encoder.push(4);
            encoder.bulk(b"pmessage");
            encoder.bulk(pattern);
        }
    }
    encoder.bulk(&message.channel);
    encoder.bulk(&message.payload);
}

fn encode_invalidation(encoder: &mut Encoder<'_>, invalidation: &Invalidation) {
    encoder.push(2);
    match invalidation {
        Invalidation::Key(key) => {
            encoder.bulk(b"invalidate");
            encode_keys(encoder, Some(key));
        }
        Invalidation::Everything => {
            encoder.bulk(b"invalidate");
            encode_keys(encoder, None);
        }
        Invalidation::RedirectBroken(client) => {
            encoder.bulk(b"tracking-redir-broken");
            encoder.int(*client as i64);
        }
    }
}

fn encode_loss(encoder: &mut Encoder<'_>, notice: &LossNotice) {
    encoder.push(5);
    encoder.bulk(notice.kind.as_str().as_bytes());
    encoder.bulk(&notice.resource);
    encoder.int(notice.fence.0 as i64);
    encoder.bulk(notice.cause.as_bytes());
    match notice.successor {
        Some(fence) => encoder.int(fence.0 as i64),
        None => encoder.nil(),
    }
}

/// To a client that others redirect to: a message in RESP2, an invalidation in RESP3.
fn encode_redirected(encoder: &mut Encoder<'_>, key: Option<&[u8]>) {
    match encoder.protocol {
        Protocol::Resp2 => {
            encoder.push(3);
            encoder.bulk(b"message");
            encoder.bulk(INVALIDATE_CHANNEL);
        }
        Protocol::Resp3 => {
            encoder.push(2);
            encoder.bulk(b"invalidate");
        }
    }
    encode_keys(encoder, key);
}

/// `None`: all keys.
fn encode_keys(encoder: &mut Encoder<'_>, key: Option<&[u8]>) {
    match key {
        Some(key) => {
            encoder.array(1);
            encoder.bulk(key);
        }
        None => encoder.nil(),
    }
}
