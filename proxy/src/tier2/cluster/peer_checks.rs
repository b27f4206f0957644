//! What a peer may send: checked before raft, the staging queue or the snapshot receiver sees it.
//!
//! raft-rs trusts its peers: a commit index beyond the log, a gap between entries or an impossible configuration is a panic. Here every
//! field is compared with what a member could send, so a faulty or hostile member cannot stop this node by one message.
//!
//! **Who.** Members of the applied configuration, and the leader that raft follows. Others are heard in two cases alone, and then only
//! with what a leader or a candidate sends: a joining node has no members yet, and a node that has heard no leader for long may have
//! missed the change that brought the leader in. Requests to the leader (forwarded commands, administration, acknowledgements) come
//! from members alone.
//!
//! # Caveats
//!
//! A member is believed about what it has: one that acknowledges entries it has not written, or leads with entries of its own making,
//! breaks the cluster's promises. Raft does not protect against that.

use crate::node_api::wire::{meta_of, MEMBERS_MAX};
use crate::node_api::{ClusterMember, Forward, NodeId, PeerMessage, SnapshotChunk, SnapshotMeta};
use crate::tier2::node::Node;
use raft::eraftpb::{ConfState, Message, MessageType};
use redfence_core::limits::ENTRY_BYTES_MAX;
use std::collections::BTreeSet;

/// Numbers beyond this are nobody's: one more would overflow somewhere.
const NUMBER_MAX: u64 = 1 << 62;
/// No partition lasts for so many elections.
const TERM_STEP_MAX: u64 = 1 << 32;
/// The name of a read round, or raft's own word for a transfer of leadership.
const CONTEXT_BYTES_MAX: usize = 64;
/// ReadIndex rounds of all followers that wait for a quorum.
const READ_ROUNDS_MAX: usize = 4_096;
const SNAPSHOT_BYTES_MAX: u64 = 1 << 40;
const NODE_ID_MAX: u64 = 65_535;
/// A node that has heard no leader for this many election time-outs hears nodes that it does not know.
const LOST_ELECTION_TIMEOUTS: u64 = 10;
/// One line in the log for so long.
const WARN_MS: u64 = 10_000;

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tier2) enum PeerRefusal {
    NotMember,
    /// No member of a working cluster sends this.
    Impossible(&'static str),
    /// Too late, or too much; it is sent again where it matters.
    NotNow,
}

use PeerRefusal::Impossible;

/// Messages that were dropped.
#[derive(Debug, Default)]
pub(in crate::tier2) struct PeerRefusals {
    pub(in crate::tier2) strangers: u64,
    pub(in crate::tier2) impossible: u64,
    warn_due_ms: u64,
}

type Checked = Result<(), PeerRefusal>;

fn ensure(holds: bool, what: &'static str) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(Impossible(what)),
    }
}

impl Node {
    /// Messages that no member of a working cluster could have sent.
    #[must_use]
    pub fn impossible_messages(&self) -> u64 {
        self.peer_refusals.impossible
    }

    pub(in crate::tier2) fn check_peer(&self, from: NodeId, message: &PeerMessage) -> Checked {
        match message {
            PeerMessage::Raft(message) => {
                self.check_hears(from)?;
                self.check_raft(from, message)
            }
            PeerMessage::SnapshotChunk(chunk) => {
                self.check_hears(from)?;
                self.check_chunk(from, chunk)
            }
            PeerMessage::Forward(forward) => {
                self.check_member(from)?;
                check_forward(from, forward)
            }
            PeerMessage::Progress(_) => self.check_hears(from),
            PeerMessage::Admin { applied, .. } => {
                self.check_member(from)?;
                ensure(*applied <= NUMBER_MAX, "an applied index out of range")
            }
            // It answers a request for votes, which members alone get.
            PeerMessage::NotMember { conf_index } => {
                self.check_member(from)?;
                ensure(*conf_index <= NUMBER_MAX, "an index out of range")
            }
            PeerMessage::SnapshotAck(_) | PeerMessage::Versions { .. } => self.check_member(from),
        }
    }

    /// Counts a dropped message, with a line in the log now and then.
    pub(in crate::tier2) fn note_refused(&mut self, from: NodeId, refusal: PeerRefusal) {
        let reason = match refusal {
            PeerRefusal::NotNow => return,
            PeerRefusal::NotMember => {
                self.peer_refusals.strangers += 1;
                "it is not a member"
            }
            Impossible(what) => {
                self.peer_refusals.impossible += 1;
                what
            }
        };
        let now_ms = self.now.monotonic_ms();
        if now_ms >= self.peer_refusals.warn_due_ms {
            self.peer_refusals.warn_due_ms = now_ms + WARN_MS;
            let PeerRefusals { strangers, impossible, .. } = self.peer_refusals;
            tracing::warn!(from, strangers, impossible, "dropping a message of a peer: {reason}");
        }
    }

    fn check_member(&self, from: NodeId) -> Checked {
        self.membership.get(from).map(|_| ()).ok_or(PeerRefusal::NotMember)
    }

    /// Whether this node hears what `from` says as a leader, a candidate or a voter.
    fn check_hears(&self, from: NodeId) -> Checked {
        let knows = self.membership.is_empty() || from == self.leader() || self.is_lost();
        match knows && from != 0 && from != self.config.id {
            true => Ok(()),
            false => self.check_member(from),
        }
    }

    /// No leader was heard for so long that this node may have missed a change of membership.
    fn is_lost(&self) -> bool {
        let election_ms = self.config.tick_ms * self.config.election_ticks as u64;
        let silent_ms = self.now.monotonic_ms().saturating_sub(self.led_ms.unwrap_or(u64::MAX));
        !self.is_leader() && silent_ms >= LOST_ELECTION_TIMEOUTS * election_ms
    }

    fn check_raft(&self, from: NodeId, message: &Message) -> Checked {
        ensure(message.from == from && message.to == self.config.id, "sender or receiver is another node")?;
        let kind = message.get_msg_type();
        let numbers = [
            message.term,
            message.log_term,
            message.index,
            message.commit,
            message.commit_term,
            message.reject_hint,
        ];
        ensure(numbers.iter().all(|number| *number <= NUMBER_MAX), "a number out of range")?;
        ensure(message.term <= self.term() + TERM_STEP_MAX, "a term too far ahead")?;
        ensure(message.request_snapshot == 0, "a snapshot is never asked for")?;
        ensure(message.context.len() <= CONTEXT_BYTES_MAX, "a context too long")?;
        ensure(
            (message.term == 0) == (kind == MessageType::MsgReadIndex),
            "a term where none belongs, or none",
        )?;
        match kind {
            MessageType::MsgAppend => self.check_append(message),
            MessageType::MsgHeartbeat => {
                self.check_leads(message)?;
                let is_current = message.term >= self.term();
                let within = message.commit <= self.raw.raft.raft_log.last_index();
                ensure(!is_current || within, "a commit index beyond the log")?;
                no_entries(message)
            }
            MessageType::MsgAppendResponse => {
                // Answers to what this leader has sent in this term.
                let is_answer = self.is_leader() && message.term == self.term();
                let last = self.raw.raft.raft_log.last_index();
                let within = message.index <= last && message.reject_hint <= last && message.commit <= last;
                ensure(!is_answer || within, "an index beyond the leader's log")?;
                no_entries(message)
            }
            MessageType::MsgHeartbeatResponse => {
                let is_answer = self.is_leader() && message.term == self.term();
                let within = message.commit <= self.raw.raft.raft_log.last_index();
                ensure(!is_answer || within, "a commit index beyond the leader's log")?;
                no_entries(message)
            }
            MessageType::MsgReadIndex => {
                ensure(message.entries.len() == 1, "a read round without its name")?;
                ensure(message.entries[0].data.len() <= CONTEXT_BYTES_MAX, "a name too long")?;
                let has_room = self.is_leader() && self.raw.raft.pending_read_count() < READ_ROUNDS_MAX;
                has_room.then_some(()).ok_or(PeerRefusal::NotNow)
            }
            MessageType::MsgReadIndexResp => {
                ensure(message.entries.len() == 1, "a read round without its name")?;
                ensure(message.entries[0].data.len() <= CONTEXT_BYTES_MAX, "a name too long")
            }
            MessageType::MsgRequestVote
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgTimeoutNow => no_entries(message),
            // Of raft to itself; or snapshots, which come in pieces; proposals, which this node forwards on its own way;
            // leadership is moved by goals.
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgPropose
            | MessageType::MsgSnapshot
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
            | MessageType::MsgTransferLeader => Err(Impossible("a kind of message that no peer sends")),
        }
    }

    /// A term has one leader.
    fn check_leads(&self, message: &Message) -> Checked {
        let leader = self.leader();
        let is_second = message.term == self.term() && leader != 0 && leader != message.from;
        ensure(!is_second, "a second leader of this term")
    }

    fn check_append(&self, message: &Message) -> Checked {
        self.check_leads(message)?;
        ensure(message.log_term <= message.term, "a log that is newer than its leader")?;
        // raft-rs takes term 0 for what lies beyond its own log, and would append behind a gap.
        ensure((message.index == 0) == (message.log_term == 0), "an index without a term")?;
        let (mut index, mut term) = (message.index, message.log_term);
        for entry in &message.entries {
            index += 1;
            ensure(entry.index == index, "entries with a gap")?;
            ensure(
                term.max(1) <= entry.term && entry.term <= message.term,
                "entries with terms out of order",
            )?;
            ensure(entry.data.len() <= ENTRY_BYTES_MAX, "an entry too large")?;
            ensure(entry.context.len() <= CONTEXT_BYTES_MAX, "a context too long")?;
            term = entry.term;
        }
        Ok(())
    }

    fn check_chunk(&self, from: NodeId, chunk: &SnapshotChunk) -> Checked {
        ensure(chunk.transfer <= NUMBER_MAX && chunk.offset <= SNAPSHOT_BYTES_MAX, "a number out of range")?;
        let Some(message) = &chunk.message else { return Ok(()) };
        ensure(message.from == from && message.to == self.config.id, "sender or receiver is another node")?;
        ensure(message.get_msg_type() == MessageType::MsgSnapshot, "a transfer of something else")?;
        ensure(message.term > 0 && message.term <= self.term() + TERM_STEP_MAX, "a term out of range")?;
        ensure(message.term <= NUMBER_MAX, "a term out of range")?;
        no_entries(message)?;
        let raft_meta = message.get_snapshot().get_metadata();
        ensure(raft_meta.index > 0 && raft_meta.index <= NUMBER_MAX, "an index out of range")?;
        ensure(
            raft_meta.term > 0 && raft_meta.term <= message.term,
            "a snapshot that is newer than its leader",
        )?;
        let meta = meta_of(message).map_err(|malformed| Impossible(malformed.0))?;
        check_snapshot_meta(&meta, raft_meta.get_conf_state())
    }
}

fn no_entries(message: &Message) -> Checked {
    ensure(message.entries.is_empty(), "entries where none belong")
}

fn check_forward(from: NodeId, forward: &Forward) -> Checked {
    ensure(forward.origin.node == from, "requests of another node's clients")?;
    let numbers = [forward.term, forward.prev, forward.acked_below, forward.origin.incarnation];
    ensure(numbers.iter().all(|number| *number <= NUMBER_MAX), "a number out of range")?;
    ensure(forward.commands.iter().all(|command| command.seq <= NUMBER_MAX), "a number out of range")
}

/// One configuration, which is not half of a change, with the members that belong to it.
fn check_snapshot_meta(meta: &SnapshotMeta, conf_state: &ConfState) -> Checked {
    ensure(meta.size_bytes <= SNAPSHOT_BYTES_MAX, "a snapshot too large")?;
    ensure(meta.conf_state == *conf_state, "two configurations in one snapshot")?;
    let is_joint = !conf_state.voters_outgoing.is_empty() || !conf_state.learners_next.is_empty();
    ensure(!is_joint && !conf_state.auto_leave, "a joint configuration")?;
    let ids: Vec<NodeId> = conf_state.voters.iter().chain(&conf_state.learners).copied().collect();
    let distinct: BTreeSet<NodeId> = ids.iter().copied().collect();
    ensure(distinct.len() == ids.len() && ids.len() <= MEMBERS_MAX, "a member twice, or too many")?;
    ensure(ids.iter().all(|id| (1..=NODE_ID_MAX).contains(id)), "a member's number out of range")?;
    ensure(!conf_state.voters.is_empty(), "a configuration without voters")?;
    let belongs = |member: &ClusterMember| match member.voter {
        true => conf_state.voters.contains(&member.id),
        false => conf_state.learners.contains(&member.id),
    };
    let members: BTreeSet<NodeId> = meta.members.iter().map(|member| member.id).collect();
    ensure(members == distinct && members.len() == meta.members.len(), "members outside the configuration")?;
    ensure(meta.members.iter().all(belongs), "members outside the configuration")
}
