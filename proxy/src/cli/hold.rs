//! A lock that a program holds for somebody else: asked for at any node, renewed until it is released or lost.
//!
//! Deadlines count from when the last good renewal was *sent*, on the clock that goes on while the machine sleeps: at the deadline the server
//! may have given the lock away. The server's own word (`LOCK.NOTIFY`) comes sooner where the server has it; without it a loss is seen
//! at the next renewal.

use super::access::{is_unavailable, Access, ConnectError};
use super::connection::{Connection, ANSWER_WITHIN, GREETING_WITHIN};
use super::exit::{self, Failure};
use super::output::tell;
use super::reply::{shown_bytes, Reply};
use redfence_core::types::WAIT_MS_MAX;
use rustix::time::{clock_gettime, ClockId};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a node that serves is looked for, at least; every node is asked in any case.
const FIND_NODE_WITHIN_MS: u64 = 5_000;
const PAUSE: Duration = Duration::from_millis(100);
/// A sleeping machine wakes up with its timers late: the clock is looked at this often.
const LOOK_EVERY_MS: u64 = 1_000;
const ATTEMPT_AT_LEAST: Duration = Duration::from_millis(50);
/// While a lock is waited for: how often its node is asked whether it lives, and how long it may take.
const CHECK_EVERY: Duration = Duration::from_secs(3);
const CHECK_WITHIN: Duration = Duration::from_secs(5);
const RELEASE_WITHIN_MS: u64 = 8_000;
const RELEASE_ATTEMPT_AT_LEAST_MS: u64 = 500;
/// A command is killed this much before its lock may be somebody else's: a twentieth of the ttl, and not more than a second. A process does
/// not die at once, and a busy machine is late.
const MARGIN_DIVISOR: u64 = 20;
const MARGIN_MS_MAX: u64 = 1_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) name: String,
    pub(crate) ttl_ms: u64,
    /// `None`: as long as it takes.
    pub(crate) wait_ms: Option<u64>,
    pub(crate) value: Option<String>,
    pub(crate) tier: Option<String>,
}

/// Why a lock is not held any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// For people.
    pub(crate) cause: String,
    /// Whether a node said so. Otherwise no node could be reached, and the lock may still be held.
    pub(crate) is_certain: bool,
}

pub(crate) struct Hold {
    access: Access,
    connection: Option<Connection>,
    wish: Wish,
    owner: String,
    fence: i64,
    /// When the last good renewal, or the acquisition, was sent.
    renewed_at_ms: u64,
    /// For how long it was granted then.
    granted_ms: u64,
}

/// What became of a lock that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// It was held until now.
    Held,
    /// It had ended before.
    Lost,
    /// No node could be reached: it ends with its ttl.
    Unknown,
}

/// What one attempt to renew came to.
enum Renewal {
    Done,
    Lost(Loss),
    /// Not known, or not possible at this node.
    Failed(String),
}

/// Milliseconds of a clock that goes on while the machine sleeps.
pub(crate) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

fn new_owner() -> Result<String, Failure> {
    let mut bytes = [0_u8; 16];
    getrandom::getrandom(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| !c.is_control()).take(60).collect();
    Ok(format!("{host}/{}/{hex}", std::process::id()))
}

impl Hold {
    /// `None` where somebody else holds it and the wait is over.
    pub(crate) async fn acquire(access: Access, wish: Wish) -> Result<Option<Hold>, Failure> {
        let owner = new_owner()?;
        let mut hold =
            Hold { access, connection: None, wish, owner, fence: 0, renewed_at_ms: now_ms(), granted_ms: 0 };
        let begun_ms = now_ms();
        let (mut attempts, mut told) = (0, String::new());
        loop {
            attempts += 1;
            let waited_ms = now_ms() - begun_ms;
            let left_ms = hold.wish.wait_ms.map_or(u64::MAX, |wait_ms| wait_ms.saturating_sub(waited_ms));
            let reason = match hold.ask_for_it(left_ms.min(WAIT_MS_MAX)).await? {
                Ok(true) if hold.is_fresh().await => return Ok(Some(hold)),
                Ok(true) => "the lock was lost at once".to_owned(),
                Ok(false) if left_ms <= WAIT_MS_MAX => return Ok(None),
                Ok(false) => continue,
                Err(reason) => reason,
            };
            let patience_ms = hold.wish.wait_ms.map(|wait_ms| wait_ms.max(FIND_NODE_WITHIN_MS));
            let is_late = patience_ms.is_some_and(|patience_ms| now_ms() - begun_ms >= patience_ms);
            if is_late && attempts >= hold.access.nodes() {
                return Err(Failure::new(exit::UNAVAILABLE, reason));
            }
            if patience_ms.is_none() && reason != told {
                tell(&format!("redfence: {reason}; trying again"));
                told = reason;
            }
            hold.move_on();
            sleep(PAUSE).await;
        }
    }

    /// One attempt at one node. The outer error ends the program; the inner one is worth another attempt, under the same owner.
    async fn ask_for_it(&mut self, wait_ms: u64) -> Result<Result<bool, String>, Failure> {
        let (ttl, wait) = (self.wish.ttl_ms.to_string(), wait_ms.to_string());
        let mut words = vec!["LOCK.ACQUIRE", &self.wish.name, &ttl, "WAIT", &wait, "OWNER", &self.owner];
        for (option, value) in [("VALUE", &self.wish.value), ("TIER", &self.wish.tier)] {
            words.extend(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        match self.connected().await {
            Ok(_) => {}
            Err(ConnectError::Unreachable(reason)) => return Ok(Err(reason)),
            Err(ConnectError::Refused(line)) => return Err(Failure::new(exit::UNAVAILABLE, line)),
        }
        let connection = self.connection.as_mut().expect("connected above");
        let sent_at_ms = now_ms();
        let within = Duration::from_millis(wait_ms) + ANSWER_WITHIN;
        let reply = tokio::select! {
            reply = connection.ask_within(&words, within) => reply,
            silent = until_silent(&self.access) => return Ok(Err(silent)),
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return Ok(Err(format!("{}: {error}", self.access.address()))),
        };
        match reply {
            Reply::Array(grant) if grant.len() == 2 => {
                let numbers = (grant[0].int(), grant[1].int().and_then(|ttl| u64::try_from(ttl).ok()));
                let (Some(fence), Some(granted_ms)) = numbers else { return Err(self.strange_answer()) };
                (self.fence, self.renewed_at_ms, self.granted_ms) = (fence, sent_at_ms, granted_ms);
                Ok(Ok(true))
            }
            Reply::Nil => Ok(Ok(false)),
            Reply::Error(line) if is_unavailable(&line) || line.starts_with("INDETERMINATE") => Ok(Err(line)),
            // What was asked for is wrong, whoever is asked.
            Reply::Error(line) if line.starts_with("ERR ") => Err(Failure::new(exit::NOT_DONE, line)),
            Reply::Error(line) => Err(Failure::new(exit::UNAVAILABLE, line)),
            Reply::Array(_) | Reply::Int(_) | Reply::Text(_) | Reply::Map(_) | Reply::Push(_) => {
                Err(self.strange_answer())
            }
        }
    }

    /// The grant of a long wait was sent for long ago: by our own clock it may be over. One renewal makes that certain.
    async fn is_fresh(&mut self) -> bool {
        if now_ms() - self.renewed_at_ms < self.renew_every_ms() {
            return true;
        }
        matches!(self.renew_once().await, Renewal::Done)
    }

    pub(crate) fn fence(&self) -> i64 {
        self.fence
    }

    /// A third of the ttl: two renewals may fail.
    fn renew_every_ms(&self) -> u64 {
        (self.granted_ms.min(self.wish.ttl_ms) / 3).max(1)
    }

    /// When a command under this lock must have ended, by [`now_ms`]: soon after, the lock may be somebody else's.
    pub(crate) fn must_be_over_at_ms(&self) -> u64 {
        let margin_ms = (self.granted_ms / MARGIN_DIVISOR).min(MARGIN_MS_MAX);
        self.renewed_at_ms + self.granted_ms - margin_ms
    }

    /// Renews until the lock is lost. Where no node can be reached it ends `early_ms` before the command must have ended. It may be
    /// dropped at any time.
    pub(crate) async fn keep(&mut self, early_ms: u64) -> Loss {
        let mut reason = String::new();
        loop {
            let deadline_ms = self.must_be_over_at_ms().saturating_sub(early_ms);
            let now = now_ms();
            if now >= deadline_ms {
                let cause = match reason.as_str() {
                    "" => "its ttl ran out while this program stood still".to_owned(),
                    reason => format!("it could not be renewed in time ({reason})"),
                };
                return Loss { cause, is_certain: false };
            }
            let due_ms = if reason.is_empty() { self.renewed_at_ms + self.renew_every_ms() } else { now };
            if now < due_ms {
                let pause_ms = (due_ms - now).min(LOOK_EVERY_MS).min(deadline_ms - now);
                match timeout(Duration::from_millis(pause_ms), self.told()).await {
                    Ok(Some(loss)) => return loss,
                    // This node is cut off: another one may not be.
                    Ok(None) => self.move_on(),
                    Err(_) => continue,
                }
            }
            let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms()).max(1));
            // Half of what is left: a slow node is waited for, and there is time for another one.
            let attempt = (left / 2).max(ATTEMPT_AT_LEAST).min(left);
            reason = match timeout(attempt, self.renew_once()).await {
                Ok(Renewal::Done) => String::new(),
                Ok(Renewal::Lost(loss)) => return loss,
                Ok(Renewal::Failed(reason)) => reason,
                Err(_) => format!("{} does not answer", self.access.address()),
            };
            if !reason.is_empty() {
                self.move_on();
                let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms()));
                sleep(PAUSE.min(left)).await;
            }
        }
    }

    /// Ends with a loss that the server tells of, or with `None` where this node or its connection is of no use any more.
    async fn told(&mut self) -> Option<Loss> {
        let Some(connection) = &mut self.connection else { return None };
        while let Ok(push) = connection.push().await {
            let [kind, name, fence, cause, successor] = &push[..] else { continue };
            if name.bytes() != Some(self.wish.name.as_bytes()) || fence.int() != Some(self.fence) {
                continue;
            }
            match kind.bytes() {
                Some(b"lock-lost") => {
                    let mut cause = format!("cause: {}", cause.shown());
                    if let Some(successor) = successor.int() {
                        cause.push_str(&format!(", the next holder has fence {successor}"));
                    }
                    return Some(Loss { cause, is_certain: true });
                }
                Some(b"lock-suspect") => return None,
                Some(_) | None => {}
            }
        }
        None
    }

    async fn renew_once(&mut self) -> Renewal {
        let is_new = self.connection.is_none();
        let words = self.words("LOCK.RENEW", &[self.fence.to_string(), self.wish.ttl_ms.to_string()]);
        let connection = match self.connected().await {
            Ok(connection) => connection,
            Err(ConnectError::Unreachable(line) | ConnectError::Refused(line)) => {
                return Renewal::Failed(line)
            }
        };
        let sent_at_ms = now_ms();
        let reply = match connection.ask(&words).await {
            Ok(reply) => reply,
            Err(error) => return Renewal::Failed(error.to_string()),
        };
        match reply.items() {
            [Reply::Int(1), ttl] => {
                let granted_ms = ttl.int().and_then(|ttl| u64::try_from(ttl).ok());
                (self.renewed_at_ms, self.granted_ms) = (sent_at_ms, granted_ms.unwrap_or(self.wish.ttl_ms));
                if is_new {
                    return self.be_told_here().await;
                }
                Renewal::Done
            }
            [Reply::Int(0), reason] => {
                Renewal::Lost(Loss { cause: format!("cause: {}", reason.shown()), is_certain: true })
            }
            _ => Renewal::Failed(reply.shown()),
        }
    }

    /// A node tells a connection of the locks that were acquired on it: the same acquisition again, on the new connection, is a retry
    /// and gets the same fence.
    async fn be_told_here(&mut self) -> Renewal {
        let fence = self.fence;
        let renewed = (self.renewed_at_ms, self.granted_ms);
        let asked = self.ask_for_it(0).await;
        let other = std::mem::replace(&mut self.fence, fence);
        (self.renewed_at_ms, self.granted_ms) = renewed;
        match asked {
            Ok(Ok(true)) if other != fence => {
                // It was lost in between, and this is a new grant: nobody runs under it.
                let words = self.words("LOCK.RELEASE", &[other.to_string()]);
                if let Some(connection) = &mut self.connection {
                    let _ = connection.ask(&words).await;
                }
                Renewal::Lost(Loss {
                    cause: "it ended while a node was looked for".to_owned(),
                    is_certain: true,
                })
            }
            Ok(Ok(false)) => {
                Renewal::Lost(Loss { cause: "somebody else holds it".to_owned(), is_certain: true })
            }
            // Then the next renewals must do.
            Ok(Ok(true) | Err(_)) | Err(_) => Renewal::Done,
        }
    }

    /// Gives the lock back, as far as a node can be reached.
    pub(crate) async fn release(mut self) -> Released {
        let words = self.words("LOCK.RELEASE", &[self.fence.to_string()]);
        let give_up_ms = now_ms() + RELEASE_WITHIN_MS;
        // A repetition of a release whose answer was lost finds it released.
        let mut is_repeated = false;
        loop {
            let left_ms = give_up_ms.saturating_sub(now_ms());
            if left_ms == 0 {
                return Released::Unknown;
            }
            // Half of what is left: there is time for another node.
            let attempt_ms = (left_ms / 2).max(RELEASE_ATTEMPT_AT_LEAST_MS).min(left_ms);
            let attempt = async {
                let connection = self.connected().await.ok()?;
                connection.ask(&words).await.ok()
            };
            let reply = timeout(Duration::from_millis(attempt_ms), attempt).await.ok().flatten();
            match reply.as_ref().map(Reply::items) {
                Some([Reply::Int(1), _]) => return Released::Held,
                Some([Reply::Int(0), reason]) => {
                    let is_ours = is_repeated && reason.bytes() == Some(b"already_released");
                    return if is_ours { Released::Held } else { Released::Lost };
                }
                Some(_) | None => is_repeated = true,
            }
            self.move_on();
            sleep(PAUSE).await;
        }
    }

    fn words(&self, command: &str, words: &[String]) -> Vec<String> {
        let mut all = vec![command.to_owned(), self.wish.name.clone()];
        all.extend_from_slice(words);
        all.extend(self.wish.tier.iter().flat_map(|tier| ["TIER".to_owned(), tier.clone()]));
        all
    }

    fn move_on(&mut self) {
        self.connection = None;
        self.access.advance();
    }

    async fn connected(&mut self) -> Result<&mut Connection, ConnectError> {
        match &mut self.connection {
            Some(_) => {}
            none @ None => {
                let mut connection = self.access.connect_here().await?;
                // Where the server has no such thing, renewals tell of a loss.
                let _ = connection.ask_within(&["LOCK.NOTIFY", "ON"], GREETING_WITHIN).await;
                *none = Some(connection);
            }
        }
        Ok(self.connection.as_mut().expect("connected above"))
    }

    fn strange_answer(&self) -> Failure {
        let line = format!("{}: what answers is no Redfence node", self.access.address());
        Failure::new(exit::UNAVAILABLE, line)
    }
}

/// Ends where the node does not answer others either: an answer from a machine that is gone, or from a process that stands still, would be
/// waited for as long as for the lock.
async fn until_silent(access: &Access) -> String {
    loop {
        sleep(CHECK_EVERY).await;
        match timeout(CHECK_WITHIN, access.connect_here()).await {
            Ok(Ok(_)) => {}
            Ok(Err(ConnectError::Unreachable(line) | ConnectError::Refused(line))) => return line,
            Err(_) => return format!("{} does not answer", access.address()),
        }
    }
}

/// Who holds a lock, for a person who cannot have it; empty where that is not known.
pub(crate) async fn holder(access: &mut Access, name: &str) -> String {
    let Ok(mut connection) = access.connect().await else { return String::new() };
    let Ok(info) = connection.ask(&["LOCK.INFO", name]).await else { return String::new() };
    match info.field("owner").and_then(Reply::bytes) {
        Some(owner) => format!(" by {}", shown_bytes(owner)),
        None => String::new(),
    }
}
