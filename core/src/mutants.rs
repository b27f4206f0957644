//! Bugs that others had, planted on purpose, so that the simulator can show that it finds them.
//!
//! Each is a line or a few where it belongs, behind the macro [`mutant!`](crate::mutant). Without the feature `mutants` that is
//! `false` at compile time and nothing is left of it in the program; with it, one build holds them all and each thread chooses
//! one, or none. Only the simulator turns the feature on.

/// One planted bug. The numbers are those of the list of known bugs in the simulator's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    ReadWithoutRound,
    LeaderReadsAlone,
    ReadBeforeApply,
    ReadNotAskedAgain,
    ReadNameReused,
    HardStateFirst,
    VoteBeforeSync,
    AckBeforeSync,
    OwnAckBeforeSync,
    CommitBehindSnapshot,
    SnapshotDiscardedEarly,
    OldMembersAfterInstall,
    MembersFromConfig,
    ChangeAckedEarly,
    DefiniteErrorAfterSending,
    RepliesNotRemembered,
    ResentUnderNewNumber,
    FollowersDoNotApply,
    PendingDeniedAfterInstall,
    DeadSessionStaysInLine,
    ReleaseByName,
    ClockOfOwnUptime,
    ExpiryStops,
    RenewOutsideLog,
    KeepAlivesLost,
    OwnerIgnored,
    AllWaitersAtOnce,
    FloorForgotten,
    FenceByClockAlone,
    SnapshotWithoutReplies,
    EndsEarly,
    RenewWithoutEffect,
    LastComeFirstServed,
    BatchedAppends,
    TransferNeverEnds,
    RemovedNeverSleeps,
    RaiseUnseen,
    FollowerDiverges,
    LeaderDiverges,
    TwoDiverge,
    StateDiverges,
    MarksForgotten,
    TimesByRatchet,
    SettingNotStored,
    GapsAccepted,
    ToldInFull,
    ClosedSessionLives,
    ReaderBesideWriter,
    ReaderOvertakes,
    UpgradeBesideReaders,
    PermitsLeak,
    ConvertInTwoSteps,
    WoundKeepsFence,
    YoungerWaits,
    LossUntold,
}

#[cfg(feature = "mutants")]
std::thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
    static MARKED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// For a bug whose cause and effect are in two places.
#[cfg(feature = "mutants")]
pub(crate) fn mark() {
    MARKED.set(true);
}

#[cfg(feature = "mutants")]
pub(crate) fn take_mark() -> bool {
    MARKED.replace(false)
}

/// Whether this thread runs with this bug.
#[cfg(feature = "mutants")]
#[must_use]
pub fn on(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Plants a bug for this thread, or takes it out again.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}

/// Whether this thread runs with this bug: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
#[must_use]
pub const fn on(_: Mutant) -> bool {
    false
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn mark() {}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn take_mark() -> bool {
    false
}

/// `mutant!(EndsEarly)`: whether this thread runs with that planted bug.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::on($crate::mutants::Mutant::$name)
    };
}
