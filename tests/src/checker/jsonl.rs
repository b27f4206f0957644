//! A history as lines of JSON, one record an event, so that a run can be kept and looked at again.
//!
//! `{"i":…,"t_ns":…,"type":"invoke"|"ok"|"fail"|"info","p":…,"rid":…,"f":…,"res":…,…}`. A completion repeats only `rid`;
//! `group` ties the parts of a multi-lock together. `{"type":"queued",…}` is somebody seen in line; lines of type `nemesis`
//! are passed over.

use super::history::{Answer, Call, History, Operation, Outcome, Reason, SeenQueued, NEVER, NO_RESOURCE};
use serde_json::{json, Map, Value};
use std::collections::HashMap;
use std::io::{self, BufRead, Write};

/// Writes invocations and completions in the order of their times.
pub fn write(history: &History, out: &mut impl Write) -> io::Result<()> {
    let mut lines: Vec<(u64, usize, Value)> = Vec::new();
    for (rid, op) in history.operations.iter().enumerate() {
        lines.push((op.invoke_ns, rid, invoke_line(rid, op)));
        let done = match op.outcome {
            Outcome::Answered(answer) => answer_line(answer),
            Outcome::Failed => json!({"type": "fail"}),
            // Nobody knows when; it stands at the end.
            Outcome::Unknown => json!({"type": "info"}),
        };
        lines.push((op.complete_ns, rid, with(done, "rid", rid as u64)));
    }
    for seen in &history.queued {
        let line = json!({"type": "queued", "res": seen.resource, "owner": seen.owner});
        lines.push((seen.at_ns, usize::MAX, line));
    }
    lines.sort_by_key(|(t_ns, rid, _)| (*t_ns, *rid));
    for (i, (t_ns, _, line)) in lines.into_iter().enumerate() {
        writeln!(out, "{}", with(with(line, "t_ns", t_ns), "i", i as u64))?;
    }
    Ok(())
}

fn with(mut line: Value, key: &str, value: u64) -> Value {
    if let Value::Object(fields) = &mut line {
        fields.insert(key.to_string(), value.into());
    }
    line
}

fn invoke_line(rid: usize, op: &Operation) -> Value {
    let mut line = match op.call {
        Call::Acquire { owner, ttl_ms, wait_ms, session } => {
            json!({"f": "acquire", "owner": owner, "ttl": ttl_ms, "wait_ms": wait_ms, "sess": session})
        }
        Call::Release { fence } => json!({"f": "release", "fence": fence}),
        Call::Renew { fence, ttl_ms } => json!({"f": "renew", "fence": fence, "ttl": ttl_ms}),
        Call::ReleaseBy { owner } => json!({"f": "release_by", "owner": owner}),
        Call::RenewBy { owner, ttl_ms } => json!({"f": "renew_by", "owner": owner, "ttl": ttl_ms}),
        Call::ForceRelease => json!({"f": "force"}),
        Call::Look => json!({"f": "query"}),
        Call::Open { session, ttl_ms } => json!({"f": "open", "sess": session, "ttl": ttl_ms}),
        Call::KeepAlive { session } => json!({"f": "keepalive", "sess": session}),
        Call::Close { session } => json!({"f": "close", "sess": session}),
        Call::Orphan { session, grace_ms } => json!({"f": "orphan", "sess": session, "ttl": grace_ms}),
    };
    line["type"] = "invoke".into();
    line["p"] = op.process.into();
    line["group"] = op.group.into();
    if op.resource != NO_RESOURCE {
        line["res"] = op.resource.into();
    }
    with(line, "rid", rid as u64)
}

fn answer_line(answer: Answer) -> Value {
    let mut line = match answer {
        Answer::Granted { fence, ttl_ms } => json!({"say": "granted", "fence": fence, "ttl": ttl_ms}),
        Answer::Taken => json!({"say": "taken"}),
        Answer::Busy => json!({"say": "busy"}),
        Answer::Done => json!({"say": "done"}),
        Answer::Refused(Reason::NotOwner) => json!({"say": "not_owner"}),
        Answer::Refused(Reason::AlreadyReleased) => json!({"say": "already_released"}),
        Answer::Refused(Reason::Expired) => json!({"say": "expired"}),
        Answer::Seen { held, fence, owner } => {
            json!({"say": "seen", "held": held, "fence": fence, "owner": owner})
        }
        Answer::NoSession => json!({"say": "no_session"}),
        Answer::Nothing => json!({"say": "nothing"}),
    };
    line["type"] = "ok".into();
    line
}

/// Reads what [`write`] wrote, or a run's own recorder. An error names the line.
pub fn read(input: impl BufRead) -> Result<History, String> {
    let mut history = History::default();
    let mut open: HashMap<u64, usize> = HashMap::new();
    for (at, line) in input.lines().enumerate() {
        let line = line.map_err(|e| format!("line {}: {e}", at + 1))?;
        let value: Value = serde_json::from_str(&line).map_err(|e| format!("line {}: {e}", at + 1))?;
        let fields = value.as_object().ok_or_else(|| format!("line {}: not an object", at + 1))?;
        take(fields, &mut history, &mut open).ok_or_else(|| format!("line {}: {line}", at + 1))?;
    }
    Ok(history)
}

fn number(fields: &Map<String, Value>, key: &str) -> Option<u64> {
    match fields.get(key) {
        None => Some(0),
        Some(value) => value.as_u64(),
    }
}

fn take(fields: &Map<String, Value>, history: &mut History, open: &mut HashMap<u64, usize>) -> Option<()> {
    let t_ns = number(fields, "t_ns")?;
    let rid = number(fields, "rid")?;
    match fields.get("type")?.as_str()? {
        "invoke" => {
            open.insert(rid, history.operations.len());
            let resource = match fields.get("res") {
                Some(value) => u32::try_from(value.as_u64()?).ok()?,
                None => NO_RESOURCE,
            };
            history.operations.push(Operation {
                process: number(fields, "p")?,
                resource,
                invoke_ns: t_ns,
                complete_ns: NEVER,
                call: call_of(fields)?,
                outcome: Outcome::Unknown,
                group: number(fields, "group")?,
            });
        }
        "ok" => {
            let op = &mut history.operations[open.remove(&rid)?];
            op.complete_ns = t_ns;
            op.outcome = Outcome::Answered(answer_of(fields)?);
        }
        "fail" => {
            let op = &mut history.operations[open.remove(&rid)?];
            op.complete_ns = t_ns;
            op.outcome = Outcome::Failed;
        }
        "info" => {
            open.remove(&rid)?;
        }
        "queued" => history.queued.push(SeenQueued {
            at_ns: t_ns,
            resource: u32::try_from(number(fields, "res")?).ok()?,
            owner: number(fields, "owner")?,
        }),
        "nemesis" => {}
        _ => return None,
    }
    Some(())
}

fn call_of(fields: &Map<String, Value>) -> Option<Call> {
    let (session, ttl_ms) = (number(fields, "sess")?, number(fields, "ttl")?);
    let (fence, owner) = (number(fields, "fence")?, number(fields, "owner")?);
    Some(match fields.get("f")?.as_str()? {
        "acquire" => Call::Acquire { owner, ttl_ms, wait_ms: number(fields, "wait_ms")?, session },
        "release" => Call::Release { fence },
        "renew" => Call::Renew { fence, ttl_ms },
        "release_by" => Call::ReleaseBy { owner },
        "renew_by" => Call::RenewBy { owner, ttl_ms },
        "force" => Call::ForceRelease,
        "query" => Call::Look,
        "open" => Call::Open { session, ttl_ms },
        "keepalive" => Call::KeepAlive { session },
        "close" => Call::Close { session },
        "orphan" => Call::Orphan { session, grace_ms: ttl_ms },
        _ => return None,
    })
}

fn answer_of(fields: &Map<String, Value>) -> Option<Answer> {
    let fence = number(fields, "fence")?;
    Some(match fields.get("say")?.as_str()? {
        "granted" => Answer::Granted { fence, ttl_ms: number(fields, "ttl")? },
        "taken" => Answer::Taken,
        "busy" => Answer::Busy,
        "done" => Answer::Done,
        "not_owner" => Answer::Refused(Reason::NotOwner),
        "already_released" => Answer::Refused(Reason::AlreadyReleased),
        "expired" => Answer::Refused(Reason::Expired),
        "seen" => {
            Answer::Seen { held: fields.get("held")?.as_bool()?, fence, owner: number(fields, "owner")? }
        }
        "no_session" => Answer::NoSession,
        "nothing" => Answer::Nothing,
        _ => return None,
    })
}
