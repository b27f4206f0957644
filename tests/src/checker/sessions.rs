//! When each session can have ended, as far as the history tells.

use super::history::{Answer, Call, History, Outcome, NEVER};
use super::{Rules, Violation, ViolationKind};
use std::collections::HashMap;

/// Bounds on the end of one session.
#[derive(Clone, Debug, Default)]
pub struct Session {
    ttl_ms: u64,
    /// It lived at some time at or after this.
    pub alive_ns: u64,
    /// For want of a keep-alive it ends no earlier than this.
    pub expiry_ns: u64,
    /// Closes that were or may have been carried out: from, to.
    pub closes: Vec<(u64, u64)>,
    /// It was certainly over by then.
    pub over_ns: u64,
}

#[derive(Debug, Default)]
pub struct Sessions(HashMap<u64, Session>);

impl Sessions {
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Session> {
        self.0.get(&id)
    }

    #[must_use]
    pub fn gather(history: &History, rules: &Rules, violations: &mut Vec<Violation>) -> Sessions {
        let mut sessions: HashMap<u64, Session> = HashMap::new();
        for op in &history.operations {
            if let Call::Open { session, ttl_ms } = op.call {
                let known = Session { ttl_ms, over_ns: NEVER, ..Session::default() };
                let entry = sessions.entry(session).or_insert(known);
                entry.expiry_ns = entry.expiry_ns.max(op.invoke_ns.saturating_add(rules.shortest_ns(ttl_ms)));
            }
        }
        let mut orphans = Vec::new();
        for op in &history.operations {
            let Some(session) = sessions.get_mut(&op.session()) else { continue };
            match (op.call, op.outcome) {
                (_, Outcome::Answered(Answer::NoSession)) => {
                    session.over_ns = session.over_ns.min(op.complete_ns);
                }
                (Call::KeepAlive { .. }, Outcome::Answered(Answer::Done)) => {
                    session.alive_ns = session.alive_ns.max(op.invoke_ns);
                    let until_ns = op.invoke_ns.saturating_add(rules.shortest_ns(session.ttl_ms));
                    session.expiry_ns = session.expiry_ns.max(until_ns);
                }
                (Call::Close { .. }, Outcome::Answered(Answer::Done)) => {
                    session.alive_ns = session.alive_ns.max(op.invoke_ns);
                    session.closes.push((op.invoke_ns, op.complete_ns));
                    session.over_ns = session.over_ns.min(op.complete_ns);
                }
                (Call::Close { .. }, Outcome::Unknown) => session.closes.push((op.invoke_ns, NEVER)),
                (Call::Orphan { session, grace_ms }, _) => {
                    orphans.push((session, op.invoke_ns.saturating_add(rules.shortest_ns(grace_ms.max(1)))));
                }
                _ => {}
            }
        }
        // The grace may begin at any time after the connection went: keep-alives cannot be ordered against it.
        for (id, end_ns) in orphans {
            if let Some(session) = sessions.get_mut(&id) {
                session.expiry_ns = session.expiry_ns.min(end_ns);
            }
        }
        for (id, session) in &sessions {
            session.check(*id, violations);
        }
        Sessions(sessions)
    }
}

impl Session {
    fn check(&self, id: u64, violations: &mut Vec<Violation>) {
        let wrong = |text: String| Violation { kind: ViolationKind::Session, resource: 0, fence: 0, text };
        if self.alive_ns > self.over_ns {
            let (alive, over) = (self.alive_ns, self.over_ns);
            violations.push(wrong(format!("session {id:x} lived at {alive} ns, but was over at {over} ns")));
        }
        let closed_ns = self.closes.iter().map(|(from_ns, _)| *from_ns).min().unwrap_or(NEVER);
        if self.expiry_ns.min(closed_ns) > self.over_ns {
            let (expiry, over) = (self.expiry_ns, self.over_ns);
            violations.push(wrong(format!(
                "session {id:x} was over at {over} ns; nobody had closed it and it had time until {expiry} ns"
            )));
        }
    }
}
