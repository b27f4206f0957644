//! Converts replies into the answers a history records. Any other reply fails the run.

use crate::checker::{Answer, Call, Outcome, Reason};
use crate::resp::Value;

/// Owners on the wire. The number is all the history keeps.
pub fn owner_name(number: u64) -> String {
    format!("o{number}")
}

/// 0 for anything that no client of ours can have sent.
pub fn owner_number(name: &[u8]) -> u64 {
    let digits = name.strip_prefix(b"o").and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The outcome of one part of a call. `part` is its index in a multi-lock.
pub fn outcome(call: &Call, part: Option<usize>, reply: &Value) -> Result<Outcome, String> {
    if let Value::Error(line) = reply {
        return error(line);
    }
    answer(call, part, reply).map(Outcome::Answered).ok_or_else(|| format!("{call:?} was answered {reply:?}"))
}

fn error(line: &str) -> Result<Outcome, String> {
    match line.split(' ').next().unwrap_or_default() {
        // NOSCRIPT: the script did not run; the client sends it again with EVAL.
        "UNAVAILABLE" | "NOSCRIPT" => Ok(Outcome::Failed),
        "INDETERMINATE" => Ok(Outcome::Unknown),
        "NOSESSION" => Ok(Outcome::Answered(Answer::NoSession)),
        "DEADLOCK" => Ok(Outcome::Answered(Answer::Nothing)),
        _ => Err(format!("error: {line}")),
    }
}

fn answer(call: &Call, part: Option<usize>, reply: &Value) -> Option<Answer> {
    Some(match call {
        Call::Acquire { .. } => match (reply, part) {
            (Value::NullBulk, _) => Answer::Busy,
            (Value::Simple(_), None) => Answer::Taken,
            (Value::Array(items), None) => {
                let [Value::Integer(fence), Value::Integer(told_ms)] = items[..] else { return None };
                // The remaining ttl: a late node reports less than was requested.
                Answer::Granted { fence: fence.try_into().ok()?, ttl_ms: told_ms.try_into().ok()? }
            }
            (Value::Array(items), Some(part)) => {
                let [Value::Array(fences), Value::Integer(told_ms)] = &items[..] else { return None };
                let Value::Integer(fence) = fences.get(part)? else { return None };
                let ttl_ms = (*told_ms).try_into().ok()?;
                Answer::Granted { fence: (*fence).try_into().ok()?, ttl_ms }
            }
            _ => return None,
        },
        Call::Release { .. } | Call::Renew { .. } => match (reply, part) {
            (Value::Array(pairs), Some(part)) => done_or_reason(pairs.get(part)?)?,
            (pair, _) => done_or_reason(pair)?,
        },
        Call::ReleaseBy { .. } | Call::RenewBy { .. } => match reply {
            Value::Integer(1) => Answer::Done,
            Value::Integer(0) => Answer::Refused(Reason::NotOwner),
            _ => return None,
        },
        Call::Look => seen(reply)?,
        Call::Open { .. } => matches!(reply, Value::Bulk(_)).then_some(Answer::Done)?,
        Call::KeepAlive { .. } | Call::Close { .. } | Call::ForceRelease => {
            matches!(reply, Value::Integer(_)).then_some(Answer::Done)?
        }
        Call::Orphan { .. } => return None,
    })
}

fn done_or_reason(pair: &Value) -> Option<Answer> {
    let Value::Array(items) = pair else { return None };
    match &items[..] {
        [Value::Integer(1), _] => Some(Answer::Done),
        [Value::Integer(0), Value::Bulk(reason)] => match &reason[..] {
            b"not_owner" => Some(Answer::Refused(Reason::NotOwner)),
            b"already_released" => Some(Answer::Refused(Reason::AlreadyReleased)),
            b"expired" => Some(Answer::Refused(Reason::Expired)),
            _ => None,
        },
        _ => None,
    }
}

/// `LOCK.INFO` in RESP2: names and values in turn.
fn seen(reply: &Value) -> Option<Answer> {
    let Value::Array(items) = reply else { return None };
    let field = |name: &[u8]| {
        items
            .chunks_exact(2)
            .find(|pair| matches!(&pair[0], Value::Bulk(key) if key == name))
            .map(|pair| &pair[1])
    };
    let Value::Integer(fence) = field(b"fence")? else { return None };
    let Value::Bulk(state) = field(b"state")? else { return None };
    let owner = match field(b"owner")? {
        Value::Bulk(owner) => owner_number(owner),
        _ => 0,
    };
    Some(Answer::Seen { held: state == b"held", fence: (*fence).try_into().ok()?, owner })
}
