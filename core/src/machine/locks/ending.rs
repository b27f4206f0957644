//! How grants end: what watchers see of it, what the old fence is told, and whether its holder lost it.

use crate::event::EventKind;
use crate::machine::version::{self, ClusterVersion};
use crate::types::{LossCause, Reason};

/// How a grant ended, for whoever comes with its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// By its holder.
    Released,
    /// In any other way.
    Expired,
}

/// What a lock remembers of the grant that ended last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastEnd {
    /// There was none, or its record was forgotten.
    Unknown,
    Released,
    Expired,
    /// One of several holders released its hold.
    SeveralReleased,
    SeveralExpired,
    /// A shared hold that has become an exclusive one.
    Converted,
    /// By a plain command. Since cluster version 2: before, it is the same as released.
    Deleted,
}

impl LastEnd {
    /// What a later release or renewal under its fence is told.
    pub(crate) fn reason(self) -> Reason {
        match self {
            LastEnd::Unknown => Reason::NotOwner,
            LastEnd::Released | LastEnd::SeveralReleased | LastEnd::Converted | LastEnd::Deleted => {
                Reason::AlreadyReleased
            }
            LastEnd::Expired | LastEnd::SeveralExpired => Reason::Expired,
        }
    }

    /// Whether it was one of several, whose fence orders nothing.
    pub(crate) fn is_of_several(self) -> bool {
        match self {
            LastEnd::Unknown | LastEnd::Released | LastEnd::Expired | LastEnd::Deleted => false,
            LastEnd::SeveralReleased | LastEnd::SeveralExpired | LastEnd::Converted => true,
        }
    }

    pub(crate) fn tag(self) -> u8 {
        match self {
            LastEnd::Unknown => 0,
            LastEnd::Released => 1,
            LastEnd::Expired => 2,
            LastEnd::SeveralReleased => 3,
            LastEnd::SeveralExpired => 4,
            LastEnd::Converted => 5,
            LastEnd::Deleted => 6,
        }
    }

    pub(crate) fn of_tag(tag: u8) -> Option<LastEnd> {
        Some(match tag {
            0 => LastEnd::Unknown,
            1 => LastEnd::Released,
            2 => LastEnd::Expired,
            3 => LastEnd::SeveralReleased,
            4 => LastEnd::SeveralExpired,
            5 => LastEnd::Converted,
            6 => LastEnd::Deleted,
            _ => return None,
        })
    }
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
    const ALL: [Ending; 9] = [
        Ending::Released,
        Ending::Expired,
        Ending::Forced,
        Ending::Flushed,
        Ending::Wounded,
        Ending::SessionEnded,
        Ending::Deleted,
        Ending::Replaced,
        Ending::Converted,
    ];

    pub(crate) fn tag(self) -> u8 {
        self as u8
    }

    /// The one with this tag.
    pub(crate) fn of_tag(tag: u8) -> Ending {
        Ending::ALL[usize::from(tag)]
    }

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

    /// What the lock remembers of it.
    pub(crate) fn last_end(self, version: ClusterVersion) -> LastEnd {
        match self.cause() {
            EndCause::Released if self == Ending::Deleted && version >= version::SECOND => LastEnd::Deleted,
            EndCause::Released => LastEnd::Released,
            EndCause::Expired => LastEnd::Expired,
        }
    }

    /// The same of one of several holders.
    pub(crate) fn of_several(self) -> LastEnd {
        match (self == Ending::Converted, self.cause()) {
            (true, _) => LastEnd::Converted,
            (false, EndCause::Released) => LastEnd::SeveralReleased,
            (false, EndCause::Expired) => LastEnd::SeveralExpired,
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

    /// For people: how it ended.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Ending::Released => "released",
            Ending::Expired => "expired",
            Ending::Forced => "forced",
            Ending::Flushed => "flushed",
            Ending::Wounded => "wounded",
            Ending::SessionEnded => "session_ended",
            Ending::Deleted => "deleted",
            Ending::Replaced => "replaced",
            Ending::Converted => "converted",
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
