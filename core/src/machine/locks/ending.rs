//! How grants end: what watchers see of it, what the old fence is told, and whether its holder lost it.

use crate::event::EventKind;
use crate::types::LossCause;

/// How the last grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// There was none, or its record was forgotten.
    Unknown,
    Released,
    Expired,
}

/// How a grant comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By its holder, or by a command that goes on with the same key under a new fence.
    Released,
    Expired,
    /// `LOCK.FORCERELEASE`.
    Forced,
    /// `FLUSHDB` or `FLUSHALL`.
    Flushed,
    /// An older session took the lock.
    Wounded,
    SessionEnded,
    /// A plain command deleted the key: the way of releasing it for clients that know no fences.
    Deleted,
    /// A plain command gave the key another value.
    Replaced,
    /// A shared hold that has become an exclusive one.
    Converted,
}

impl Ending {
    /// What a later release or renewal under its fence is told.
    pub(crate) fn cause(self) -> EndCause {
        match self {
            Ending::Released | Ending::Deleted | Ending::Converted => EndCause::Released,
            Ending::Expired
            | Ending::Forced
            | Ending::Flushed
            | Ending::Wounded
            | Ending::SessionEnded
            | Ending::Replaced => EndCause::Expired,
        }
    }

    pub(crate) fn event(self) -> EventKind {
        match self {
            Ending::Expired => EventKind::Expired,
            Ending::SessionEnded => EventKind::SessionEnded,
            Ending::Released
            | Ending::Forced
            | Ending::Flushed
            | Ending::Wounded
            | Ending::Deleted
            | Ending::Replaced
            | Ending::Converted => EventKind::Released,
        }
    }

    /// What its holder has to be told, if it did not end the grant itself.
    pub(crate) fn loss(self) -> Option<LossCause> {
        match self {
            Ending::Released | Ending::Converted => None,
            Ending::Expired => Some(LossCause::Expired),
            Ending::Forced | Ending::Flushed => Some(LossCause::Forced),
            Ending::Wounded => Some(LossCause::Wounded),
            Ending::SessionEnded => Some(LossCause::SessionEnded),
            Ending::Deleted | Ending::Replaced => Some(LossCause::Deleted),
        }
    }
}
