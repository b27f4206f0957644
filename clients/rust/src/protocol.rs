//! The words that are sent, and what the answers mean. Two dialects: the commands of a proxy or of the module, and the functions
//! of the Lua library.

use crate::error::{Busy, Error};
use redis::{Cmd, Value};
use std::time::Duration;

/// Limits of the server, checked before anything is sent.
const NAME_BYTES_MAX: usize = 512;
const VALUE_BYTES_MAX: usize = 1024;
const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(3600);
const NAMES_MAX: usize = 256;
const PERMITS_MAX: u32 = 1_000_000;

/// Which tier serves a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// Fast; a failover of the Redis behind may break it.
    Efficiency,
    /// Linearizable: no acknowledged operation is lost while a majority keeps its disks.
    Correctness,
}

impl Tier {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Tier::Efficiency => "EFFICIENCY",
            Tier::Correctness => "CORRECTNESS",
        }
    }
}

/// The kind of a lock. All but `Exclusive` need cluster version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of readers, no writer beside them. The fence identifies a reader; it orders nothing.
    Shared,
    /// A semaphore.
    Permits {
        /// How many are taken.
        count: u32,
        /// How many there are, in this caller's opinion.
        of: u32,
    },
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `LOCK.ACQUIRE …`: a proxy, or a Redis with the module.
    #[default]
    Commands,
    /// `FCALL lock_acquire …`: a Redis with the Lua library.
    Functions,
}

/// What an acquisition asks for.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) names: Vec<Vec<u8>>,
    /// Taken by `LOCK.MACQUIRE`, also where it names one resource alone.
    pub(crate) is_multi: bool,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) tier: Option<Tier>,
    pub(crate) kind: Kind,
    pub(crate) value: Option<Vec<u8>>,
}

impl Terms {
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (at, name) in self.names.iter().enumerate() {
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                let text = format!(
                    "a resource name must be 1 to {NAME_BYTES_MAX} bytes, and one has {}",
                    name.len()
                );
                return Err(Error::invalid(text));
            }
            if self.names[..at].contains(name) {
                return Err(Error::invalid(format!("{} is given twice", String::from_utf8_lossy(name))));
            }
        }
        if self.names.is_empty() || self.names.len() > NAMES_MAX {
            return Err(Error::invalid(format!("a multi-lock names 1 to {NAMES_MAX} resources")));
        }
        if self.ttl < Duration::from_millis(1) || self.ttl > TTL_MAX {
            return Err(Error::invalid("the ttl must be from 1 ms to 365 days"));
        }
        if self.wait > WAIT_MAX {
            return Err(Error::invalid("the wait must be at most 1 hour"));
        }
        if self.value.as_ref().is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
            return Err(Error::invalid(format!("a value must be at most {VALUE_BYTES_MAX} bytes")));
        }
        match self.kind {
            Kind::Permits { count, of } if count < 1 || count > of || of > PERMITS_MAX => {
                Err(Error::invalid(format!("permits must be 1 ≤ count ≤ of ≤ {PERMITS_MAX}")))
            }
            Kind::Permits { .. } if self.is_multi => Err(Error::invalid("a multi-lock takes no permits")),
            Kind::Permits { .. } | Kind::Shared | Kind::Exclusive => Ok(()),
        }
    }

    /// Whether it asks for more than an exclusive lock.
    pub(crate) fn needs_version_2(&self) -> bool {
        self.kind != Kind::Exclusive || self.value.is_some()
    }

    fn resources(&self) -> Vec<&[u8]> {
        self.names.iter().map(Vec::as_slice).collect()
    }
}

pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Dialect {
    /// A command over one or several resources: its name, the resources as the dialect wants them; the other words follow.
    fn over(self, name: &str, resources: &[&[u8]], with_count: bool) -> Cmd {
        match self {
            Dialect::Commands => {
                let mut cmd = redis::cmd(name);
                if with_count {
                    cmd.arg(resources.len());
                }
                cmd.arg(resources);
                cmd
            }
            Dialect::Functions => {
                let mut cmd = redis::cmd("FCALL");
                cmd.arg(name.to_ascii_lowercase().replace('.', "_")).arg(resources.len()).arg(resources);
                cmd
            }
        }
    }

    fn tier(cmd: &mut Cmd, tier: Option<Tier>) {
        if let Some(tier) = tier {
            cmd.arg("TIER").arg(tier.word());
        }
    }

    pub(crate) fn acquire(self, terms: &Terms, owner: &str, wait: Duration, session: Option<&str>) -> Cmd {
        let name = if terms.is_multi { "LOCK.MACQUIRE" } else { "LOCK.ACQUIRE" };
        let mut cmd = self.over(name, &terms.resources(), terms.is_multi);
        cmd.arg(whole_ms(terms.ttl)).arg("OWNER").arg(owner);
        if !wait.is_zero() {
            cmd.arg("WAIT").arg(whole_ms(wait).max(1));
        }
        if let Some(session) = session {
            cmd.arg("SESSION").arg(session);
        }
        match terms.kind {
            Kind::Exclusive => {}
            Kind::Shared => {
                cmd.arg("SHARED");
            }
            Kind::Permits { count, of } => {
                cmd.arg("PERMITS").arg(count).arg("OF").arg(of);
            }
        }
        if let Some(value) = &terms.value {
            cmd.arg("VALUE").arg(value.as_slice());
        }
        Dialect::tier(&mut cmd, terms.tier);
        cmd
    }

    /// The Lua library's way to leave a queue.
    pub(crate) fn cancel(terms: &Terms, owner: &str) -> Cmd {
        let name = if terms.is_multi { "LOCK.MCANCEL" } else { "LOCK.CANCEL" };
        let mut cmd = Dialect::Functions.over(name, &terms.resources(), true);
        cmd.arg(owner);
        cmd
    }

    pub(crate) fn release(self, name: &[u8], fence: i64, tier: Option<Tier>) -> Cmd {
        let mut cmd = self.over("LOCK.RELEASE", &[name], false);
        cmd.arg(fence);
        Dialect::tier(&mut cmd, tier);
        cmd
    }

    pub(crate) fn renew(self, name: &[u8], fence: i64, ttl: Duration, tier: Option<Tier>) -> Cmd {
        let mut cmd = self.over("LOCK.RENEW", &[name], false);
        cmd.arg(fence).arg(whole_ms(ttl));
        Dialect::tier(&mut cmd, tier);
        cmd
    }

    pub(crate) fn info(self, name: &[u8], tier: Option<Tier>) -> Cmd {
        let mut cmd = self.over("LOCK.INFO", &[name], false);
        Dialect::tier(&mut cmd, tier);
        cmd
    }

    pub(crate) fn queue(self, name: &[u8], tier: Option<Tier>) -> Cmd {
        let mut cmd = self.over("LOCK.QUEUE", &[name], false);
        Dialect::tier(&mut cmd, tier);
        cmd
    }

    pub(crate) fn convert(name: &[u8], fence: i64, exclusive: bool, wait: Duration) -> Cmd {
        let mut cmd = redis::cmd("LOCK.CONVERT");
        cmd.arg(name).arg(fence).arg(if exclusive { "EXCLUSIVE" } else { "SHARED" });
        if exclusive && !wait.is_zero() {
            cmd.arg("WAIT").arg(whole_ms(wait).max(1));
        }
        cmd
    }

    pub(crate) fn fence(self, command: &str, name: &[u8]) -> Cmd {
        self.over(command, &[name], false)
    }
}

/// What an acquisition was answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted(Vec<i64>, Duration),
    Taken,
    /// The Lua library: listen on this key for this long, then ask again.
    Queued(Vec<u8>, Duration),
}

pub(crate) fn unexpected(command: &str, value: &Value) -> Error {
    let text = format!("{command} was answered with {value:?}, which this client does not understand");
    Error::Server { code: "ERR".into(), text }
}

pub(crate) fn answer(value: &Value) -> Result<Answer, Error> {
    let failed = || unexpected("an acquisition", value);
    let items = match value {
        Value::Nil => return Ok(Answer::Taken),
        Value::Array(items) => items,
        _ => return Err(failed()),
    };
    if items.first().and_then(bytes) == Some(b"queued") {
        let key = items.get(2).and_then(bytes).ok_or_else(failed)?;
        let poll = items.get(3).and_then(integer).ok_or_else(failed)?;
        return Ok(Answer::Queued(key.to_vec(), millis(poll)));
    }
    let [fences, ttl] = items.as_slice() else { return Err(failed()) };
    let fences = match fences {
        Value::Array(fences) => fences.iter().map(integer).collect::<Option<Vec<i64>>>(),
        fence => integer(fence).map(|fence| vec![fence]),
    };
    let ttl = integer(ttl).ok_or_else(failed)?;
    Ok(Answer::Granted(fences.ok_or_else(failed)?, millis(ttl)))
}

/// `[1, …]` or `[0, reason]`: `Ok` with the second element, or the reason.
pub(crate) fn yes_or_reason(value: &Value) -> Result<Result<&Value, &[u8]>, Error> {
    if let Value::Array(items) = value {
        if let [yes, second] = items.as_slice() {
            if integer(yes) == Some(1) {
                return Ok(Ok(second));
            }
            if let Some(reason) = bytes(second) {
                return Ok(Err(reason));
            }
        }
    }
    Err(unexpected("a release or renewal", value))
}

pub(crate) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(value) => Some(*value),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

pub(crate) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A field of a map, in either protocol.
pub(crate) fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Map(pairs) => {
            pairs.iter().find(|(key, _)| bytes(key) == Some(name.as_bytes())).map(|(_, value)| value)
        }
        Value::Array(items) => {
            items.chunks_exact(2).find(|pair| bytes(&pair[0]) == Some(name.as_bytes())).map(|pair| &pair[1])
        }
        _ => None,
    }
}

/// What `LOCK.INFO` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Whether anybody holds it.
    pub is_held: bool,
    /// Which tier answered.
    pub tier: Option<Tier>,
    /// The last fence issued, 0 if none is known.
    pub fence: i64,
    /// Who holds it, the oldest first. A server without kinds of locks shows one.
    pub holders: Vec<Holder>,
    /// How many wait.
    pub waiters: u64,
}

/// One holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner: a UUID that names one acquisition.
    pub owner: Vec<u8>,
    /// Its fence.
    pub fence: i64,
    /// What is left of its lease; `None` where it has no end of its own.
    pub ttl: Option<Duration>,
    /// What it stored with the lock.
    pub value: Option<Vec<u8>>,
}

/// One waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner: a UUID that names one acquisition.
    pub owner: Vec<u8>,
    /// For how long it has waited.
    pub waited: Duration,
}

impl Waiter {
    pub(crate) fn read_all(value: &Value) -> Result<Vec<Waiter>, Error> {
        let one = |row: &Value| match row {
            Value::Array(row) => {
                let (owner, waited) = (bytes(row.first()?)?.to_vec(), millis(integer(row.get(1)?)?));
                Some(Waiter { owner, waited })
            }
            _ => None,
        };
        match value {
            Value::Array(rows) => Ok(rows.iter().filter_map(one).collect()),
            _ => Err(unexpected("LOCK.QUEUE", value)),
        }
    }
}

impl Holder {
    fn read(value: &Value) -> Option<Holder> {
        Some(Holder {
            owner: field(value, "owner").and_then(bytes)?.to_vec(),
            fence: field(value, "fence").and_then(integer)?,
            ttl: field(value, "ttl").and_then(integer).filter(|ttl| *ttl >= 0).map(millis),
            value: field(value, "value").and_then(bytes).map(<[u8]>::to_vec),
        })
    }
}

impl LockInfo {
    pub(crate) fn read(value: &Value) -> Result<LockInfo, Error> {
        let state = field(value, "state").and_then(bytes).ok_or_else(|| unexpected("LOCK.INFO", value))?;
        let is_held = state == b"held";
        let holders = match field(value, "holders") {
            Some(Value::Array(holders)) => holders.iter().filter_map(Holder::read).collect(),
            _ => Holder::read(value).filter(|_| is_held).into_iter().collect(),
        };
        let tier = match field(value, "tier").and_then(bytes) {
            Some(b"CORRECTNESS") => Some(Tier::Correctness),
            Some(b"EFFICIENCY") => Some(Tier::Efficiency),
            _ => None,
        };
        let number = |name| field(value, name).and_then(integer).unwrap_or(0);
        let waiters = u64::try_from(number("waiters")).unwrap_or(0);
        Ok(LockInfo { is_held, tier, fence: number("fence"), holders, waiters })
    }

    pub(crate) fn into_busy(self) -> Busy {
        let holder = self.holders.into_iter().next();
        Busy {
            fence: holder.as_ref().map(|holder| holder.fence),
            ttl: holder.as_ref().and_then(|holder| holder.ttl),
            holder: holder.map(|holder| holder.owner),
            waiting: Some(self.waiters),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            names: vec![b"a".to_vec()],
            is_multi: false,
            ttl: Duration::from_secs(1),
            wait: Duration::ZERO,
            tier: Some(Tier::Correctness),
            kind: Kind::Exclusive,
            value: None,
        }
    }

    fn words(cmd: &Cmd) -> String {
        let word = |arg| match arg {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => "?".into(),
        };
        cmd.args_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_dialects_say_the_same() {
        let mut terms = terms();
        let wait = Duration::from_millis(50);
        let sent = words(&Dialect::Commands.acquire(&terms, "o", wait, Some("s")));
        assert_eq!(sent, "LOCK.ACQUIRE a 1000 OWNER o WAIT 50 SESSION s TIER CORRECTNESS");
        let sent = words(&Dialect::Functions.acquire(&terms, "o", Duration::ZERO, None));
        assert_eq!(sent, "FCALL lock_acquire 1 a 1000 OWNER o TIER CORRECTNESS");
        terms.names.push(b"b".to_vec());
        (terms.is_multi, terms.kind, terms.tier) = (true, Kind::Shared, None);
        let sent = words(&Dialect::Commands.acquire(&terms, "o", Duration::ZERO, None));
        assert_eq!(sent, "LOCK.MACQUIRE 2 a b 1000 OWNER o SHARED");
        assert_eq!(words(&Dialect::cancel(&terms, "o")), "FCALL lock_mcancel 2 a b o");
        assert_eq!(words(&Dialect::Functions.release(b"a", 7, None)), "FCALL lock_release 1 a 7");
    }

    #[test]
    fn limits_are_checked_before_anything_is_sent() {
        assert!(terms().check().is_ok());
        let broken: [fn(&mut Terms); 7] = [
            |terms| terms.names = vec![Vec::new()],
            |terms| terms.names = vec![vec![b'x'; 513]],
            |terms| terms.names = vec![b"a".to_vec(), b"a".to_vec()],
            |terms| terms.ttl = Duration::ZERO,
            |terms| terms.wait = Duration::from_secs(3601),
            |terms| terms.kind = Kind::Permits { count: 4, of: 3 },
            |terms| terms.value = Some(vec![0; 1025]),
        ];
        for break_it in broken {
            let mut terms = terms();
            break_it(&mut terms);
            assert!(matches!(terms.check(), Err(Error::Invalid { .. })), "{terms:?}");
        }
    }

    #[test]
    fn answers_are_read_in_both_protocols() {
        let grant = Value::Array(vec![Value::Int(42), Value::Int(1000)]);
        assert_eq!(answer(&grant).unwrap(), Answer::Granted(vec![42], Duration::from_secs(1)));
        assert_eq!(answer(&Value::Nil).unwrap(), Answer::Taken);
        assert!(answer(&Value::Int(1)).is_err());
        let text = |text: &str| Value::BulkString(text.into());
        let pairs =
            [(text("state"), text("held")), (text("owner"), text("me")), (text("fence"), Value::Int(7))];
        let flat = pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect();
        for value in [Value::Map(pairs.to_vec()), Value::Array(flat)] {
            let info = LockInfo::read(&value).unwrap();
            assert_eq!((info.is_held, info.fence, info.holders[0].owner.as_slice()), (true, 7, &b"me"[..]));
        }
    }
}
