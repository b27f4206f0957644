//! Periodic tasks of the leader (expiry, declaring lost nodes gone, promoting learners, raising the cluster version), and membership changes that
//! operators have asked for at any node.

use crate::node_api::{AdminRequest, NodeId, PeerMessage, Ticket};
use crate::tier2::cluster::membership::{self, Goal, GOALS_MAX};
use crate::tier2::node::{LastIndexes, Node};
use crate::tier2::refusals;
use crate::tier2::requests::encoded;
use raft::eraftpb::ConfChangeV2;
use raft::ProgressState;
use redfence_core::machine::Command;
use redfence_core::mutant;
use redfence_core::reply::Reply;

/// A goal is worked on this often.
const GOAL_RETRY_MS: u64 = 200;
/// A node that was declared gone is declared gone again after this time, if the first declaration was lost.
const GONE_AGAIN_MS: u64 = 500;
/// Under load, what has been idle for too long is forgotten this often.
const FORGET_EVERY_MS: u64 = 100;

impl Node {
    pub(in crate::tier2) fn run_leader_tasks(&mut self) {
        self.touch_sessions();
        self.walk_digest();
        if self.is_leader() {
            self.expire_due();
            self.forget_due();
        }
        let now_ms = self.now.monotonic_ms();
        if now_ms < self.leader_tasks_due_ms {
            return;
        }
        self.leader_tasks_due_ms = now_ms + self.config.tick_ms;
        self.work_on_digests();
        if self.is_leader() {
            self.declare_gone();
            self.promote_learners();
        }
        self.tell_versions();
        self.work_on_goals();
        // After whatever may have begun to add a member: one that is being added counts too.
        if self.is_leader() {
            self.raise_version();
        }
    }

    /// The cluster's own, once its settings are founded.
    pub(in crate::tier2) fn idle_retention_ms(&self) -> u64 {
        let settings = self.machine.settings();
        match settings.founded {
            true => settings.idle_retention_ms,
            false => self.config.idle_record_ms,
        }
    }

    /// Expires what is due by proposing an entry; any entry does, because each one first expires what its stamp makes due.
    fn expire_due(&mut self) {
        let Some(logical_ms) = self.clock.logical_ms() else { return };
        if mutant!(ExpiryStops) && self.raw.raft.term > 3 {
            return;
        }
        if !self.stage.is_empty() || !self.may_propose() {
            return;
        }
        let idle_ms = self.idle_retention_ms();
        let nothing_under_way = self.entries_under_way() == 0;
        let ends = self.machine.next_due_ms().is_some_and(|due_ms| {
            let covered = self.clock.stamped_ms().is_some_and(|stamped_ms| stamped_ms >= due_ms);
            due_ms <= logical_ms && (!covered || nothing_under_way)
        });
        let since_stamp_ms = self.clock.since_stamp_ms(self.now).unwrap_or(0);
        let carries_clock =
            self.machine.next_due_ms().is_some() && since_stamp_ms >= self.config.clock_entry_ms;
        if ends || carries_clock {
            self.stage.push_unnumbered(encoded(&Command::Expire { idle_ms }));
        }
    }

    /// Forgets free locks and old marks. Also under load, where something is always under way: one that comes before the last was applied
    /// does nothing.
    fn forget_due(&mut self) {
        let now_ms = self.now.monotonic_ms();
        let Some(logical_ms) = self.clock.logical_ms() else { return };
        let is_idle = self.stage.is_empty() && self.entries_under_way() == 0;
        let every_ms = if is_idle { self.config.tick_ms } else { FORGET_EVERY_MS };
        if now_ms < self.forgot_ms + every_ms || self.is_quarantined() {
            return;
        }
        let idle_ms = self.idle_retention_ms();
        let forgets = self.machine.oldest_idle_ms().is_some_and(|since_ms| since_ms + idle_ms <= logical_ms);
        let folds = self.machine.next_mark_fold_ms().is_some_and(|at_ms| at_ms <= logical_ms);
        if forgets || folds {
            self.forgot_ms = now_ms;
            self.stage.push_unnumbered(encoded(&Command::Expire { idle_ms }));
        }
    }

    /// Removes the waiters of a node that is unreachable for too long, or no longer a member, from lock queues.
    fn declare_gone(&mut self) {
        let now_ms = self.now.monotonic_ms();
        if now_ms < self.gone_due_ms || self.is_quarantined() {
            return;
        }
        let own = self.config.id;
        let gone: Vec<_> = self
            .machine
            .live_origins()
            .filter(|origin| origin.node != own)
            .filter(|origin| {
                let silent_ms = self.silent_ms(origin.node, now_ms);
                let gone_ms = if self.is_port_dead(origin.node, now_ms) {
                    self.config.node_down_ms.min(self.config.node_gone_ms)
                } else {
                    self.config.node_gone_ms
                };
                self.membership.get(origin.node).is_none() || silent_ms >= gone_ms
            })
            .collect();
        for origin in gone {
            self.gone_due_ms = now_ms + GONE_AGAIN_MS;
            tracing::warn!(?origin, "node declared gone: its waiting requests leave the lock queues");
            self.stage.push_unnumbered(encoded(&Command::OriginGone { origin }));
        }
    }

    /// Whether nobody has listened at a peer's port since it was last heard of: its process has ended, and its clients are gone.
    fn is_port_dead(&self, peer: NodeId, now_ms: u64) -> bool {
        let refused_ms = self.refused_ms.get(&peer);
        refused_ms.is_some_and(|refused_ms| now_ms - refused_ms <= self.silent_ms(peer, now_ms))
    }

    /// How long a peer has not been heard of. One never heard of counts from the first time it was asked for.
    pub(in crate::tier2) fn silent_ms(&self, peer: NodeId, now_ms: u64) -> u64 {
        self.heard_ms.get(&peer).map_or(u64::MAX, |heard_ms| now_ms.saturating_sub(*heard_ms))
    }

    /// A learner that has caught up becomes a voter.
    fn promote_learners(&mut self) {
        if self.raw.raft.has_pending_conf() || !self.may_propose() {
            return;
        }
        let last_index = self.raw.raft.raft_log.last_index();
        let (now_ms, every_ms) = (self.now.monotonic_ms(), self.config.promote_lag_ms);
        let since_ms = now_ms - self.last_indexes.looked_ms;
        if since_ms >= every_ms {
            // Else nothing is known of the time before.
            let before = if since_ms < 2 * every_ms { self.last_indexes.then } else { u64::MAX };
            self.last_indexes = LastIndexes { looked_ms: now_ms, then: last_index, before };
        }
        let lag = self.config.promote_lag_entries;
        // Entries that are on their way are many where the network is slow and one voter commits them by itself.
        let recent_index = last_index.saturating_sub(lag).min(self.last_indexes.before);
        let ready = self.membership.iter().filter(|member| !member.voter).find(|member| {
            !self.is_diverged(member.id)
                && self.raw.raft.prs().get(member.id).is_some_and(|progress| {
                    progress.recent_active
                        && progress.state == ProgressState::Replicate
                        && progress.matched >= recent_index
                })
        });
        if let Some(id) = ready.map(|member| member.id) {
            self.propose_change(membership::promote(id));
        }
    }

    fn propose_change(&mut self, change: ConfChangeV2) -> bool {
        // raft would silently replace a second pending change by an empty entry.
        !self.raw.raft.has_pending_conf() && self.raw.propose_conf_change(Vec::new(), change).is_ok()
    }

    pub(in crate::tier2) fn on_admin(&mut self, ticket: Ticket, request: AdminRequest, timeout_ms: u64) {
        let full = (self.goals.len() >= GOALS_MAX).then(refusals::queue_full);
        let diverged = match request {
            AdminRequest::Transfer { id } if self.is_diverged(id) => {
                Some(refusals::transfer_to_quarantined(id))
            }
            AdminRequest::Transfer { .. } | AdminRequest::Add { .. } | AdminRequest::Remove { .. } => None,
        };
        let refused = self.refusal().or(full).or(diverged);
        match refused.or_else(|| self.refuse_change(&request)) {
            Some(refusal) => self.out.replies.push((ticket, refusal)),
            None => {
                let deadline_ms = self.now.monotonic_ms().saturating_add(timeout_ms);
                self.goals.push(Goal { ticket, request, deadline_ms, due_ms: 0, started: false });
                // Looked at in this very turn.
                self.leader_tasks_due_ms = self.now.monotonic_ms();
            }
        }
    }

    fn refuse_change(&self, request: &AdminRequest) -> Option<Reply> {
        self.membership.refuse(request, self.config.loopback_peers_only)
    }

    fn work_on_goals(&mut self) {
        for mut goal in std::mem::take(&mut self.goals) {
            let now_ms = self.now.monotonic_ms();
            let early = mutant!(ChangeAckedEarly) && goal.started;
            if early || self.membership.shows(&goal.request, self.leader()) {
                self.out.replies.push((goal.ticket, Reply::OK));
            } else if goal.deadline_ms <= now_ms {
                self.out.replies.push((goal.ticket, goal.gave_up()));
            } else {
                if goal.due_ms <= now_ms {
                    goal.due_ms = now_ms + GOAL_RETRY_MS;
                    goal.started |= self.work_towards(&goal.request);
                }
                self.goals.push(goal);
            }
        }
    }

    fn work_towards(&mut self, request: &AdminRequest) -> bool {
        if self.is_leader() {
            return self.pursue(request);
        }
        if self.leader() == 0 {
            return false;
        }
        let message = PeerMessage::Admin { applied: self.applied, request: request.clone() };
        self.out.send.push((self.leader(), message));
        true
    }

    /// A peer forwards a change. One sent before the last membership change may be a delayed copy of a request that was carried
    /// out already, and would undo what came after it. If it is still wanted, the peer sends it again with its new applied index.
    pub(in crate::tier2) fn on_asked(&mut self, applied: u64, request: &AdminRequest) {
        if applied >= self.membership.changed_at() {
            self.pursue(request);
        }
    }

    /// One step of the leader towards a goal. Answers whether it did anything.
    fn pursue(&mut self, request: &AdminRequest) -> bool {
        if !self.is_leader()
            || self.is_quarantined()
            || self.refuse_change(request).is_some()
            || self.membership.shows(request, self.leader())
        {
            return false;
        }
        match request {
            AdminRequest::Add { id, addr } => self.propose_change(membership::add_learner(*id, addr)),
            AdminRequest::Remove { id } if *id == self.config.id => self.transfer_leadership(),
            AdminRequest::Remove { id } => self.propose_change(membership::remove(*id)),
            AdminRequest::Transfer { id } if self.is_diverged(*id) => false,
            AdminRequest::Transfer { id } => {
                self.raw.transfer_leader(*id);
                true
            }
        }
    }

    /// Gives leadership to the voter that is alive and furthest on.
    pub(in crate::tier2) fn transfer_leadership(&mut self) -> bool {
        if self.raw.raft.lead_transferee.is_some() {
            return true;
        }
        let now_ms = self.now.monotonic_ms();
        let best = self
            .membership
            .iter()
            .filter(|member| member.voter && member.id != self.config.id && !self.is_diverged(member.id))
            .filter(|member| self.silent_ms(member.id, now_ms) < self.config.node_down_ms)
            .filter_map(|member| Some((self.raw.raft.prs().get(member.id)?.matched, member.id)))
            .max();
        match best {
            Some((_, id)) => {
                self.raw.transfer_leader(id);
                true
            }
            None => false,
        }
    }

    /// A node that asks for votes and is not a member may not know that it was removed.
    pub(in crate::tier2) fn hint_not_member(&mut self, from: NodeId) {
        if !self.membership.is_empty() && self.membership.get(from).is_none() {
            self.out.send.push((from, PeerMessage::NotMember { conf_index: self.applied }));
        }
    }

    /// Accepted only if the sender knows a later membership than the one that added this node.
    pub(in crate::tier2) fn on_not_member(&mut self, conf_index: u64) {
        let added_at = self.membership.get(self.config.id).map_or(0, |member| member.added_at);
        if !self.is_leader() && self.leader() == 0 && !self.removed && conf_index > added_at.max(1) {
            tracing::warn!(conf_index, "this node was removed from the cluster");
            self.removed = true;
            // Votes that are on their way would make it a leader, and without ticks it would stay one for good.
            self.stand_back();
            self.status_due_ms = 0;
        }
    }

    /// A removed node neither leads nor asks for votes.
    pub(in crate::tier2) fn stand_back(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, raft::INVALID_ID);
    }
}
