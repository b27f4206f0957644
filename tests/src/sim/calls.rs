//! What clients ask: turned into inputs for a node, and into operations of the history; and answers turned back.

use super::names;
use crate::checker::history::{NEVER, NO_RESOURCE};
use crate::checker::{Answer, Call, History, Operation, Outcome, Reason};
use bytes::Bytes;
use redfence::tier2::ports::{Input, NodeId, OwnedQuery, Read, Submit, Ticket};
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Reason as CoreReason, SessionId};
use std::ops::Range;

pub type CallNumber = u64;

/// One call of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// One resource: `LOCK.ACQUIRE`; several: `LOCK.MACQUIRE`.
    Acquire {
        resources: Vec<u32>,
        owner: u64,
        ttl_ms: u64,
        wait_ms: u64,
        session: u64,
    },
    /// One: `LOCK.RELEASE`; several: `LOCK.MRELEASE`.
    Release {
        pairs: Vec<(u32, u64)>,
    },
    Renew {
        resource: u32,
        fence: u64,
        ttl_ms: u64,
    },
    Force {
        resource: u32,
    },
    Look {
        resource: u32,
    },
    Queue {
        resource: u32,
    },
    Open {
        session: u64,
        ttl_ms: u64,
    },
    KeepAlive {
        session: u64,
    },
    Close {
        session: u64,
    },
}

/// A call whose outcome is not there yet.
#[derive(Clone, Debug)]
pub struct OpenCall {
    pub client: usize,
    pub host: NodeId,
    /// The start of the host its connection leads to.
    pub life: u64,
    pub ticket: Ticket,
    pub ask: Ask,
    /// Its operations in the history.
    pub operations: Range<usize>,
    pub invoke_us: u64,
    /// The answer is on its way, or lost: the node has nothing more to say.
    pub answered: bool,
}

/// What the client makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Granted(Vec<u64>),
    Busy,
    Done,
    Refused,
    NoSession,
    /// Answered, and nothing came of it.
    Nothing,
    /// Refused for certain.
    Failed,
    Unknown,
}

impl Ask {
    #[must_use]
    pub fn wait_ms(&self) -> u64 {
        match self {
            Ask::Acquire { wait_ms, .. } => *wait_ms,
            _ => 0,
        }
    }

    /// Whether it goes the way of reads, beside the log.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            Ask::Look { .. } | Ask::Queue { .. } => true,
            Ask::Acquire { .. }
            | Ask::Release { .. }
            | Ask::Renew { .. }
            | Ask::Force { .. }
            | Ask::Open { .. }
            | Ask::KeepAlive { .. }
            | Ask::Close { .. } => false,
        }
    }

    /// What a node is told.
    #[must_use]
    pub fn input(&self, ticket: Ticket, patience_ms: u64) -> Input {
        let read = |query| Input::Read(Read { ticket, query, patience_ms });
        let change = |command: Command<'_>| {
            let mut blob = Vec::new();
            command.encode(&mut blob);
            let (blob, wait_ms) = (Bytes::from(blob), self.wait_ms());
            Input::Submit(Submit { ticket, blob, patience_ms, wait_ms })
        };
        let db = 0;
        match self {
            Ask::Acquire { resources, owner, ttl_ms, wait_ms, session } => {
                let (names, owner) = (names::resources(resources), names::owner(*owner));
                let (ttl_ms, wait_ms, owner) = (*ttl_ms, *wait_ms, owner.as_bytes());
                let session = (*session != 0).then_some(SessionId(*session));
                match &names[..] {
                    [name] => {
                        let resource = name.as_bytes();
                        change(Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session })
                    }
                    names => {
                        let resources = names.iter().map(String::as_bytes).collect();
                        change(Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session })
                    }
                }
            }
            Ask::Release { pairs } => {
                let names: Vec<String> =
                    pairs.iter().map(|(resource, _)| names::resource(*resource)).collect();
                match &pairs[..] {
                    [(_, fence)] => {
                        change(Command::Release { db, resource: names[0].as_bytes(), fence: Fence(*fence) })
                    }
                    pairs => {
                        let fences = pairs.iter().map(|(_, fence)| Fence(*fence));
                        let pairs = names.iter().map(String::as_bytes).zip(fences).collect();
                        change(Command::MRelease { db, pairs })
                    }
                }
            }
            Ask::Renew { resource, fence, ttl_ms } => {
                let name = names::resource(*resource);
                let (resource, fence, ttl_ms) = (name.as_bytes(), Fence(*fence), *ttl_ms);
                change(Command::Renew { db, resource, fence, ttl_ms })
            }
            Ask::Force { resource } => {
                change(Command::ForceRelease { db, resource: names::resource(*resource).as_bytes() })
            }
            Ask::Look { resource } => {
                read(OwnedQuery::Info { db, resource: names::resource(*resource).into() })
            }
            Ask::Queue { resource } => {
                read(OwnedQuery::Queue { db, resource: names::resource(*resource).into() })
            }
            Ask::Open { session, ttl_ms } => {
                change(Command::SessionOpen { id: SessionId(*session), ttl_ms: *ttl_ms, label: b"" })
            }
            Ask::KeepAlive { session } => change(Command::SessionKeepAlive { id: SessionId(*session) }),
            Ask::Close { session } => change(Command::SessionClose { id: SessionId(*session) }),
        }
    }

    /// What the history is told: a resource and a call for each part.
    fn parts(&self) -> Vec<(u32, Call)> {
        match self {
            Ask::Acquire { resources, owner, ttl_ms, wait_ms, session } => {
                let (owner, ttl_ms, wait_ms, session) = (*owner, *ttl_ms, *wait_ms, *session);
                let call = Call::Acquire { owner, ttl_ms, wait_ms, session };
                resources.iter().map(|resource| (*resource, call)).collect()
            }
            Ask::Release { pairs } => {
                pairs.iter().map(|(resource, fence)| (*resource, Call::Release { fence: *fence })).collect()
            }
            Ask::Renew { resource, fence, ttl_ms } => {
                vec![(*resource, Call::Renew { fence: *fence, ttl_ms: *ttl_ms })]
            }
            Ask::Force { resource } => vec![(*resource, Call::ForceRelease)],
            Ask::Look { resource } => vec![(*resource, Call::Look)],
            Ask::Queue { .. } => Vec::new(),
            Ask::Open { session, ttl_ms } => {
                vec![(NO_RESOURCE, Call::Open { session: *session, ttl_ms: *ttl_ms })]
            }
            Ask::KeepAlive { session } => vec![(NO_RESOURCE, Call::KeepAlive { session: *session })],
            Ask::Close { session } => vec![(NO_RESOURCE, Call::Close { session: *session })],
        }
    }

    /// Enters the call into the history, its outcome not known.
    pub fn invoke(&self, history: &mut History, process: u64, group: u64, now_us: u64) -> Range<usize> {
        let first = history.operations.len();
        let parts = self.parts();
        let group = if parts.len() > 1 { group } else { 0 };
        history.operations.extend(parts.into_iter().map(|(resource, call)| Operation {
            process,
            resource,
            invoke_ns: now_us * 1_000,
            complete_ns: NEVER,
            call,
            outcome: Outcome::Unknown,
            group,
        }));
        first..history.operations.len()
    }
}

/// Enters the outcome of a call. `None`: nobody will ever know.
pub fn complete(history: &mut History, call: &OpenCall, reply: Option<&Reply>, now_us: u64) -> Heard {
    let Some(reply) = reply else { return Heard::Unknown };
    let parts = call.operations.len();
    let (heard, outcomes) = match reply {
        Reply::Error(refusal) => match refusal.code() {
            "INDETERMINATE" => return Heard::Unknown,
            "UNAVAILABLE" => (Heard::Failed, vec![Outcome::Failed; parts]),
            "NOSESSION" => (Heard::NoSession, vec![Outcome::Answered(Answer::NoSession); parts]),
            _ => (Heard::Nothing, vec![Outcome::Answered(Answer::Nothing); parts]),
        },
        reply => {
            let (heard, answers) = read_answer(&call.ask, reply);
            (heard, answers.into_iter().map(Outcome::Answered).collect())
        }
    };
    assert_eq!(
        outcomes.len(),
        parts,
        "an answer that does not fit its question: {reply:?} to {:?}",
        call.ask
    );
    for (at, outcome) in call.operations.clone().zip(outcomes) {
        history.operations[at].outcome = outcome;
        history.operations[at].complete_ns = now_us * 1_000;
    }
    heard
}

fn read_answer(ask: &Ask, reply: &Reply) -> (Heard, Vec<Answer>) {
    match (ask, reply) {
        (Ask::Acquire { .. }, Reply::Granted { fence, ttl_ms }) => {
            (Heard::Granted(vec![fence.0]), vec![Answer::Granted { fence: fence.0, ttl_ms: *ttl_ms }])
        }
        (Ask::Acquire { resources, .. }, Reply::Nil) => match resources.len() {
            1 => (Heard::Busy, vec![Answer::Busy]),
            several => (Heard::Busy, vec![Answer::Nothing; several]),
        },
        (Ask::Acquire { .. }, Reply::Array(items)) => many_granted(items),
        (Ask::Release { .. }, Reply::Released | Reply::Refused(_)) => (Heard::Done, vec![ended(reply)]),
        (Ask::Release { .. }, Reply::Array(items)) => (Heard::Done, items.iter().map(ended).collect()),
        (Ask::Renew { .. }, Reply::Renewed { .. }) => (Heard::Done, vec![Answer::Done]),
        (Ask::Renew { .. }, Reply::Refused(_)) => (Heard::Refused, vec![ended(reply)]),
        (Ask::Force { .. }, Reply::Int(1)) => (Heard::Done, vec![Answer::Done]),
        (Ask::Force { .. }, Reply::Int(0)) => (Heard::Nothing, vec![Answer::Nothing]),
        (Ask::Look { .. }, Reply::Info(info)) => {
            let owner = info.owner.as_deref().map_or(0, names::owner_number);
            let seen = Answer::Seen { held: info.held, fence: info.fence.0, owner };
            (Heard::Done, vec![seen])
        }
        (Ask::Queue { .. }, Reply::Array(_)) => (Heard::Done, Vec::new()),
        (Ask::Open { .. }, Reply::Bulk(_)) => (Heard::Done, vec![Answer::Done]),
        (Ask::KeepAlive { .. } | Ask::Close { .. }, Reply::Int(_)) => (Heard::Done, vec![Answer::Done]),
        (ask, reply) => panic!("an answer that does not fit its question: {reply:?} to {ask:?}"),
    }
}

/// `[[fence, …], ttl]`
fn many_granted(items: &[Reply]) -> (Heard, Vec<Answer>) {
    let [Reply::Array(fences), Reply::Int(ttl_ms)] = items else {
        panic!("not the answer of a multi-lock: {items:?}");
    };
    let fences: Vec<u64> = fences
        .iter()
        .map(|fence| match fence {
            Reply::Int(fence) => *fence as u64,
            other => panic!("not a fence: {other:?}"),
        })
        .collect();
    let ttl_ms = *ttl_ms as u64;
    let answers = fences.iter().map(|fence| Answer::Granted { fence: *fence, ttl_ms }).collect();
    (Heard::Granted(fences), answers)
}

fn ended(reply: &Reply) -> Answer {
    match reply {
        Reply::Released => Answer::Done,
        Reply::Refused(CoreReason::NotOwner) => Answer::Refused(Reason::NotOwner),
        Reply::Refused(CoreReason::AlreadyReleased) => Answer::Refused(Reason::AlreadyReleased),
        Reply::Refused(CoreReason::Expired) => Answer::Refused(Reason::Expired),
        other => panic!("not the answer of a release: {other:?}"),
    }
}
