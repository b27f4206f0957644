//! The planted bugs, what each stands for, and the search for a seed that finds it: `sim --mutants`.
//!
//! The numbers are those of the project's list of bugs that others had. Not here, because they cannot exist in the
//! simulated parts: 9 (directory sync: the storage's own tests), 24 (a client library's business), and the loss of Redis's
//! own writes (29, Tier 1: `tests/tier1_fences.rs`).

use super::{run, Report};
use redfence_core::mutants::{choose, Mutant};
use std::ops::Range;

/// A planted bug: which, its number in the list (0: our own), what it does.
pub type Row = (Mutant, u8, &'static str);

pub const TABLE: [Row; 55] = [
    (Mutant::ReadWithoutRound, 1, "reads are answered from the node's own state at once"),
    (Mutant::ReadNotAskedAgain, 2, "a ReadIndex that raft dropped is not asked again"),
    (Mutant::ReadNameReused, 3, "every ReadIndex round has the same name"),
    (Mutant::LeaderReadsAlone, 4, "a leader answers reads without asking whether it still leads"),
    (Mutant::ReadBeforeApply, 1, "a confirmed read does not wait for its index to be applied"),
    (Mutant::HardStateFirst, 5, "term, vote and commit are written before the entries they speak of"),
    (Mutant::VoteBeforeSync, 6, "a vote is sent before it is durable"),
    (Mutant::CommitBehindSnapshot, 7, "a restart takes an old commit index with a newer snapshot"),
    (Mutant::OwnAckBeforeSync, 8, "a leader counts its own entries before they are durable"),
    (Mutant::AckBeforeSync, 10, "a follower acknowledges entries before they are durable"),
    (Mutant::SnapshotDiscardedEarly, 11, "the old snapshot goes before the record of the new one is durable"),
    (Mutant::OldMembersAfterInstall, 12, "an installed snapshot leaves the old membership"),
    (Mutant::MembersFromConfig, 13, "a restart takes its members from the configuration"),
    (Mutant::ChangeAckedEarly, 14, "a change of membership is acknowledged when it is asked for"),
    (Mutant::DefiniteErrorAfterSending, 15, "UNAVAILABLE for a request that was sent"),
    (Mutant::RepliesNotRemembered, 16, "a proposal that comes twice is applied twice"),
    (Mutant::ResentUnderNewNumber, 16, "a request is sent to the next leader under a new number"),
    (Mutant::FollowersDoNotApply, 17, "only the leader applies"),
    (Mutant::PendingDeniedAfterInstall, 18, "after a snapshot pending requests are denied"),
    (Mutant::DeadSessionStaysInLine, 19, "waiters of a dead session stay in line"),
    (Mutant::ReleaseByName, 20, "a release does not look at the fence"),
    (Mutant::ClockOfOwnUptime, 21, "a new leader stamps with its own uptime"),
    (Mutant::ExpiryStops, 22, "expiry stops after some changes of leader"),
    (Mutant::RenewOutsideLog, 23, "a leader renews without the log"),
    (Mutant::KeepAlivesLost, 25, "followers do not pass on keep-alives"),
    (Mutant::OwnerIgnored, 26, "a retry of the holder is taken for a stranger"),
    (Mutant::SnapshotWithoutReplies, 26, "a snapshot leaves out the remembered replies"),
    (Mutant::AllWaitersAtOnce, 27, "an end serves the whole line"),
    (Mutant::FloorForgotten, 28, "forgotten counters leave no floor"),
    (Mutant::FenceByClockAlone, 29, "fences come from the clock alone"),
    (Mutant::EndsEarly, 0, "locks end after three quarters of their time"),
    (Mutant::RenewWithoutEffect, 0, "a renewal is answered and not done"),
    (Mutant::LastComeFirstServed, 0, "last come, first served"),
    (Mutant::BatchedAppends, 0, "raft 0.7.0 batches appends"),
    (Mutant::TransferNeverEnds, 0, "a halted snapshot transfer stays open"),
    (Mutant::RemovedNeverSleeps, 0, "a removed node never sleeps"),
    (Mutant::RaiseUnseen, 0, "the cluster version rises before every member can run it"),
    (Mutant::FollowerDiverges, 0, "a follower gives another answer"),
    (Mutant::LeaderDiverges, 0, "the leader gives another answer"),
    (Mutant::TwoDiverge, 0, "two nodes give different other answers"),
    (Mutant::StateDiverges, 0, "a node's state differs, and no answer shows it"),
    (Mutant::MarksForgotten, 0, "a snapshot leaves out the high-water marks of FENCE.*"),
    (Mutant::TimesByRatchet, 0, "absolute times are read against the ratcheted wall clock"),
    (Mutant::SettingNotStored, 0, "a change of a setting is acknowledged and not stored"),
    (Mutant::GapsAccepted, 0, "a leader takes a pipeline with a hole where a peer connection was cut"),
    (Mutant::ToldInFull, 0, "a waiter is told its whole ttl, however late"),
    (Mutant::ClosedSessionLives, 0, "the locks of a closed session live on"),
    (Mutant::ReaderBesideWriter, 0, "a reader is let in beside a writer"),
    (Mutant::ReaderOvertakes, 0, "a reader goes in before the writer that waits"),
    (Mutant::UpgradeBesideReaders, 0, "a reader becomes the writer beside other readers"),
    (Mutant::PermitsLeak, 0, "permits of a holder that expired are not given back"),
    (Mutant::ConvertInTwoSteps, 0, "between a reader's end and its grant as the writer another is let in"),
    (Mutant::WoundKeepsFence, 0, "an older session takes a lock under the fence of the younger"),
    (Mutant::YoungerWaits, 0, "a younger session of wait-die waits for an older one"),
    (Mutant::LossUntold, 0, "who loses a shared lock or a permit is not told"),
];

/// The first seed of the range that finds this bug.
#[must_use]
pub fn hunt(mutant: Mutant, seeds: Range<u64>) -> Option<Report> {
    choose(Some(mutant));
    // The simulator compares states itself; of these bugs the nodes must find out by their digests.
    let by_digest = matches!(
        mutant,
        Mutant::FollowerDiverges | Mutant::LeaderDiverges | Mutant::TwoDiverge | Mutant::StateDiverges
    );
    let is_found = |report: &Report| match by_digest {
        true => report.failures.iter().any(|text| text.contains("digest")),
        false => !report.failures.is_empty(),
    };
    let found = seeds.map(|seed| run(seed, false)).find(is_found);
    choose(None);
    found
}
