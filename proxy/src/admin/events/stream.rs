//! What one dashboard listens to: it takes of each batch what is for its user and its pattern.

use super::feed::Batch;
use super::text::LiveEvent;
use crate::acl::User;
use crate::admin::caller::Caller;
use crate::admin::Admin;
use bytes::Bytes;
use redfence_core::event::CHANNEL_PREFIX;
use redfence_core::glob;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Events that one stream is sent in a second; others are counted as lost.
const EVENTS_PER_SECOND: u32 = 200;
/// Steps that its pattern may take in a second, as [`glob::matches_counted`] counts them: about a millisecond.
const STEPS_PER_SECOND: u64 = 200_000;
const PING_EVERY: Duration = Duration::from_secs(15);
/// How often a stream tells what was lost, and looks whether its user is as it was.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Stream {
    admin: Arc<Admin>,
    user: Arc<User>,
    generation: u64,
    pattern: Option<Vec<u8>>,
    sender: mpsc::Sender<Bytes>,
    /// Events that may still be sent in this second, and steps its pattern may still take.
    left: u32,
    steps_left: u64,
    second: Instant,
    /// The number of the next event, once a batch has come.
    next: Option<u64>,
    lost: u64,
}

impl Stream {
    pub(super) fn new(caller: Caller, pattern: Option<Vec<u8>>, sender: mpsc::Sender<Bytes>) -> Stream {
        Stream {
            // Of no generation: the first batch looks whether the user is still as it was.
            generation: 0,
            user: caller.user,
            admin: caller.admin,
            pattern,
            sender,
            left: EVENTS_PER_SECOND,
            steps_left: STEPS_PER_SECOND,
            second: Instant::now(),
            next: None,
            lost: 0,
        }
    }

    pub(super) async fn run(mut self, mut receiver: broadcast::Receiver<Arc<Batch>>) {
        if self.sender.send(Bytes::from_static(b"retry: 3000\n: connected\n\n")).await.is_err() {
            return;
        }
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pinged = Instant::now();
        loop {
            let mut piece = Vec::new();
            tokio::select! {
                batch = receiver.recv() => match batch {
                    // It may have waited for its reader for long: what happened since its user was changed is not for it.
                    Ok(_) if !self.is_still_allowed() => return,
                    Ok(batch) => self.take_batch(&batch, &mut piece),
                    // The next batch's number tells how many.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = looks.tick() => {
                    if !self.is_still_allowed() {
                        return;
                    }
                    if self.lost > 0 {
                        let lost = std::mem::take(&mut self.lost);
                        piece.extend_from_slice(format!("event: gap\ndata: {{\"lost\":{lost}}}\n\n").as_bytes());
                    }
                    if pinged.elapsed() >= PING_EVERY {
                        pinged = Instant::now();
                        piece.extend_from_slice(b": ping\n\n");
                    }
                }
                () = self.sender.closed() => return,
            }
            if !piece.is_empty() && self.sender.send(piece.into()).await.is_err() {
                return;
            }
        }
    }

    fn take_batch(&mut self, batch: &Batch, piece: &mut Vec<u8>) {
        self.lost += self.next.map_or(0, |next| batch.first.saturating_sub(next)) + batch.left_out;
        self.next = Some(batch.end());
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.second = Instant::now();
            self.left = EVENTS_PER_SECOND;
            self.steps_left = STEPS_PER_SECOND;
        }
        for (index, event) in batch.events.iter().enumerate() {
            if self.left == 0 || self.steps_left == 0 {
                // Not looked at: some of them may not be for this stream.
                self.lost += (batch.events.len() - index) as u64;
                return;
            }
            if self.is_wanted(event) {
                self.left -= 1;
                piece.extend_from_slice(&event.text);
            }
        }
    }

    fn is_wanted(&mut self, event: &LiveEvent) -> bool {
        let name = &event.channel[CHANNEL_PREFIX.len()..];
        if let Some(pattern) = &self.pattern {
            let mut steps = 0;
            let is_match = glob::matches_counted(pattern, name, &mut steps);
            self.steps_left = self.steps_left.saturating_sub(steps);
            if !is_match {
                return false;
            }
        }
        self.user.check(&[b"SUBSCRIBE", &event.channel], None).is_ok()
    }

    /// Whether its user has not been changed or deleted since the stream began.
    fn is_still_allowed(&mut self) -> bool {
        let access = &self.admin.server.access;
        let generation = access.generation();
        if generation == self.generation {
            return true;
        }
        self.generation = generation;
        access.user(&self.user.name).is_some_and(|user| Arc::ptr_eq(&user, &self.user) && user.is_on)
    }
}
