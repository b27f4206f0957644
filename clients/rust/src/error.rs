//! What can go wrong, as types: act on the variant, read the text.

use std::fmt;
use std::time::Duration;

/// An error of this crate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else has the lock, and the wait ran out.
    Busy(Busy),
    /// No server could be reached, or none had a quorum, until the deadline. It certainly did not happen.
    Unavailable {
        /// What the last attempt met.
        reason: String,
        /// Nothing was sent: too many requests failed lately, and the next probe is not due yet.
        circuit_open: bool,
    },
    /// The request was sent and its outcome is not known. For an acquisition this comes only when the deadline is over; what the
    /// server may have granted is given back in the background.
    Indeterminate {
        /// What the last attempt met.
        reason: String,
    },
    /// The wait would have closed a circle of sessions that wait for each other. Release what you hold, then begin again.
    Deadlock {
        /// The server's text: it names the circle.
        circle: String,
    },
    /// The lock is lost: stop working on what it protects.
    Lost(Loss),
    /// The lock is held, but not for as long as [`crate::Lock::ensure`] was asked for.
    TooLittleTime {
        /// What is left.
        remaining: Duration,
        /// What was asked for.
        wanted: Duration,
    },
    /// The tier that was asked for is not served here, or is weaker than the route of the name.
    TierRefused {
        /// The server's text.
        reason: String,
    },
    /// The lock is in use in a mode that does not go with this one.
    ModeConflict {
        /// The server's text.
        reason: String,
    },
    /// A newer fence was seen: the write did not happen. Stop working.
    Stale {
        /// The server's text.
        reason: String,
    },
    /// The server does not know this feature.
    Unsupported {
        /// What was asked for.
        feature: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A name, time or option is out of range. Nothing was sent.
    Invalid {
        /// What is wrong with it, and the limit.
        reason: String,
    },
    /// The client was closed.
    Closed,
    /// Any other error of the server.
    Server {
        /// The first word.
        code: String,
        /// The text behind it.
        text: String,
    },
}

/// Who has the lock, as far as the caller asked for it with [`crate::LockRequest::describe_busy`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The owner who holds it.
    pub holder: Option<Vec<u8>>,
    /// The holder's fence.
    pub fence: Option<i64>,
    /// How long the holder's lease lasts if it is not renewed. `None` also where it is bound to a session.
    pub ttl: Option<Duration>,
    /// How many wait already: a new waiter would have this many before it.
    pub waiting: Option<u64>,
}

/// How a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Why.
    pub cause: Cause,
    /// The fence of the next holder, where the server told it.
    pub successor: Option<i64>,
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The server ended the lease.
    Expired,
    /// An operator took it away.
    Forced,
    /// An older session took it (wound-wait).
    Wounded,
    /// The session it was bound to ended.
    SessionEnded,
    /// A plain command deleted or overwrote it.
    Deleted,
    /// This process could not renew in time, by its own clock. The server may still think it is held.
    Deadline,
    /// The server does not know this fence as the holder's.
    NotOwner,
    /// Somebody released it by its fence.
    AlreadyReleased,
    /// It was held for as long as [`crate::LockRequest::max_hold`] allows.
    MaxHold,
    /// The client was closed.
    Closed,
}

impl Cause {
    /// The word, as the server and the other clients write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Expired => "expired",
            Cause::Forced => "forced",
            Cause::Wounded => "wounded",
            Cause::SessionEnded => "session_ended",
            Cause::Deleted => "deleted",
            Cause::Deadline => "deadline",
            Cause::NotOwner => "not_owner",
            Cause::AlreadyReleased => "already_released",
            Cause::MaxHold => "max_hold",
            Cause::Closed => "closed",
        }
    }

    /// A word of the server. One that a newer server made up counts as `Expired`: the lock is gone either way.
    pub(crate) fn from_word(word: &[u8]) -> Cause {
        match word {
            b"forced" => Cause::Forced,
            b"wounded" => Cause::Wounded,
            b"session_ended" => Cause::SessionEnded,
            b"deleted" => Cause::Deleted,
            b"not_owner" => Cause::NotOwner,
            b"already_released" => Cause::AlreadyReleased,
            _ => Cause::Expired,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Loss {
    pub(crate) fn new(cause: Cause) -> Loss {
        Loss { cause, successor: None }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause)?;
        match self.successor {
            Some(fence) => write!(f, ", the next holder has fence {fence}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Busy(busy) => {
                f.write_str("somebody else has the lock")?;
                if let Some(holder) = &busy.holder {
                    write!(f, " (owner {})", String::from_utf8_lossy(holder))?;
                }
                match busy.waiting {
                    Some(waiting) => write!(f, ", {waiting} wait for it"),
                    None => Ok(()),
                }
            }
            Error::Unavailable { reason, circuit_open: false } => write!(f, "no server answers: {reason}"),
            Error::Unavailable { reason, circuit_open: true } => {
                write!(f, "not sent, because no server answered lately: {reason}")
            }
            Error::Indeterminate { reason } => write!(f, "the outcome is not known: {reason}"),
            Error::Deadlock { circle } => write!(f, "deadlock: {circle}"),
            Error::Lost(loss) => write!(f, "the lock is lost: {loss}"),
            Error::TooLittleTime { remaining, wanted } => {
                write!(f, "the lock is held for {remaining:?} more, and {wanted:?} were asked for")
            }
            Error::TierRefused { reason } => write!(f, "the tier is refused: {reason}"),
            Error::ModeConflict { reason } => write!(f, "the lock is in use in another mode: {reason}"),
            Error::Stale { reason } => write!(f, "stale: {reason}"),
            Error::Unsupported { feature, needs } => write!(f, "{feature} needs {needs}"),
            Error::Invalid { reason } => f.write_str(reason),
            Error::Closed => f.write_str("the client is closed"),
            Error::Server { code, text } => write!(f, "{code} {text}"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Whether somebody else has the lock.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy(_))
    }

    /// Whether the lock is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost(_))
    }

    pub(crate) fn invalid(reason: impl Into<String>) -> Error {
        Error::Invalid { reason: reason.into() }
    }
}

/// What one attempt met.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection broke, could not be made, or was silent: whether it happened is not known if anything was sent.
    Connection { reason: String, sent: bool },
    /// The server answered with an error.
    Server { code: String, text: String },
    /// The client is closed: nothing was sent.
    Closed,
}

impl Failure {
    pub(crate) fn from_redis(error: &redis::RedisError, sent: bool) -> Failure {
        let is_connection = error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        match error.code() {
            Some(code) if !is_connection => {
                Failure::Server { code: code.to_owned(), text: error.detail().unwrap_or_default().to_owned() }
            }
            _ => Failure::Connection { reason: error.to_string(), sent },
        }
    }

    pub(crate) fn is(&self, wanted: &str) -> bool {
        matches!(self, Failure::Server { code, .. } if code == wanted)
    }

    /// Whether the same request may succeed if it is sent again.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Failure::Connection { .. } => true,
            Failure::Closed => false,
            Failure::Server { code, .. } => {
                matches!(
                    code.as_str(),
                    "UNAVAILABLE"
                        | "INDETERMINATE"
                        | "UNBLOCKED"
                        | "LOADING"
                        | "MASTERDOWN"
                        | "TRYAGAIN"
                        | "READONLY"
                )
            }
        }
    }

    /// Whether it certainly had no effect.
    pub(crate) fn is_without_effect(&self) -> bool {
        match self {
            Failure::Connection { sent, .. } => !sent,
            Failure::Closed => true,
            Failure::Server { code, .. } => code != "INDETERMINATE",
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Connection { reason, sent: false } => Error::Unavailable { reason, circuit_open: false },
            Failure::Connection { reason, sent: true } => Error::Indeterminate { reason },
            Failure::Closed => Error::Closed,
            Failure::Server { code, text } => match code.as_str() {
                "UNAVAILABLE" | "LOADING" | "MASTERDOWN" | "TRYAGAIN" | "UNBLOCKED" | "READONLY" => {
                    Error::Unavailable { reason: text, circuit_open: false }
                }
                "INDETERMINATE" => Error::Indeterminate { reason: text },
                "DEADLOCK" => Error::Deadlock { circle: text },
                "TIER" | "CROSSTIER" => Error::TierRefused { reason: text },
                "MODE" => Error::ModeConflict { reason: text },
                "STALE" => Error::Stale { reason: text },
                "NOSESSION" => Error::Lost(Loss::new(Cause::SessionEnded)),
                _ => Error::Server { code, text },
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connection { reason, .. } => f.write_str(reason),
            Failure::Closed => write!(f, "{}", Error::Closed),
            Failure::Server { code, text } => write!(f, "{code} {text}"),
        }
    }
}
