//! What clients ask: turned into inputs for a node, and into operations of the history; and answers turned back.

use super::names;
use crate::checker::history::{NEVER, NO_RESOURCE};
use crate::checker::{Answer, Call, History, Operation, Outcome, Reason};
use bytes::Bytes;
use redfence::node_api::{Input, NodeId, OwnedQuery, Read, Submit, Ticket};
use redfence_core::keyspace::Resp;
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Member, Reason as CoreReason, SessionId, SessionScope};
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
    /// `SET NX PX`. `member` 0: by a node's ordinary listener; else by the Redlock listener of that node.
    Take {
        resource: u32,
        owner: u64,
        ttl_ms: u64,
        member: NodeId,
    },
    /// `SET` of a value of so many bytes, nobody's lock: what snapshots, entries and frames must carry. Every second one by a
    /// script that must be run.
    Store {
        key: u64,
        number: u64,
        bytes: usize,
    },
    /// A plain client's script. `whole`: `EVAL` in place of `EVALSHA`.
    Script {
        resource: u32,
        owner: u64,
        does: Does,
        member: NodeId,
        whole: bool,
    },
}

/// Keeps the value, and the beginnings of the last ones in a list beside it.
const STORE_BY_SCRIPT: &str = "redis.call('set', KEYS[1], ARGV[1]) \
    local kept = string.sub(redis.call('get', KEYS[1]), 1, 2000) \
    if redis.call('rpush', KEYS[2], kept, #ARGV[1]) > 40 then redis.call('ltrim', KEYS[2], -20, -1) end \
    return redis.status_reply('OK')";
/// Numbers of the keys with those lists.
const LOG_KEYS_FROM: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    CompareAndDelete,
    CompareAndPexpire { ttl_ms: u64 },
}

impl Does {
    /// The script and its digest. Every second owner has one that is not recognised, and must be run.
    fn text(self, owner: u64) -> (&'static str, &'static str) {
        match self {
            Does::CompareAndDelete if owner % 2 == 1 => (
                "local owner = redis.call('get', KEYS[1]) local turns = 0 for turn = 1, 3 do turns = turns + turn end if turns == 6 and owner == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
                "5ab6502be9cbdc997f25e27e76327e469777ab0d",
            ),
            Does::CompareAndPexpire { .. } if owner % 2 == 1 => (
                "local owner = redis.call('get', KEYS[1]) local turns = 0 for turn = 1, 3 do turns = turns + turn end if turns == 6 and owner == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0",
                "8f6a9fa9dbdc65b663f90b032312b7e3b725e15b",
            ),
            Does::CompareAndDelete => (
                "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
                "e9f69f2beb755be68b5e456ee2ce9aadfbc4ebf4",
            ),
            Does::CompareAndPexpire { .. } => (
                "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
                "9136fcf51831e5cf49f109b6e9c97d5b675280d6",
            ),
        }
    }
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
    /// Granted, and no fence told.
    Taken,
    Busy,
    Done,
    Refused,
    NoSession,
    /// The node does not know the script by its digest.
    NoScript,
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
            | Ask::Close { .. }
            | Ask::Take { .. }
            | Ask::Store { .. }
            | Ask::Script { .. } => false,
        }
    }

    /// Whether it asks one of several masters: what that one says is not yet what became of the lock.
    #[must_use]
    pub fn is_by_member(&self) -> bool {
        matches!(self, Ask::Take { member: 1.., .. } | Ask::Script { member: 1.., .. })
    }

    /// What a node is told.
    #[must_use]
    pub fn input(&self, ticket: Ticket, timeout_ms: u64) -> Input {
        let read = |query| Input::Read(Read { ticket, query, timeout_ms, account: None });
        let change = |command: Command<'_>| {
            let mut blob = Vec::new();
            command.encode(&mut blob);
            let (blob, wait_ms) = (Bytes::from(blob), self.wait_ms());
            Input::Submit(Submit { ticket, connection: 0, blob, timeout_ms, wait_ms })
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
            Ask::Look { resource } => read(OwnedQuery::Info {
                db,
                resource: names::resource(*resource).into(),
                sessions: SessionScope::All,
            }),
            Ask::Queue { resource } => {
                read(OwnedQuery::Queue { db, resource: names::resource(*resource).into() })
            }
            Ask::Open { session, ttl_ms } => {
                change(Command::SessionOpen { id: SessionId(*session), ttl_ms: *ttl_ms, label: b"" })
            }
            Ask::KeepAlive { session } => {
                change(Command::SessionKeepAlive { id: SessionId(*session), own: false })
            }
            Ask::Close { session } => {
                change(Command::SessionClose { id: SessionId(*session), any_user: false })
            }
            Ask::Take { resource, owner, ttl_ms, member } => {
                let (name, value, ttl) =
                    (names::resource(*resource), names::owner(*owner), ttl_ms.to_string());
                change(redis(&["SET", &name, &value, "NX", "PX", &ttl], *member))
            }
            Ask::Store { key, number, bytes } => {
                let (name, mut value) = (names::value(*key), format!("{number}:"));
                value.extend(std::iter::repeat_n('v', *bytes));
                match number % 2 {
                    0 => change(redis(&["SET", &name, &value], 0)),
                    _ => {
                        let log = names::value(key + LOG_KEYS_FROM);
                        change(redis(&["EVAL", STORE_BY_SCRIPT, "2", &name, &log, &value], 0))
                    }
                }
            }
            Ask::Script { resource, owner, does, member, whole } => {
                let (script, digest) = does.text(*owner);
                let (name, value) = (names::resource(*resource), names::owner(*owner));
                let mut words = vec![if *whole { "EVAL" } else { "EVALSHA" }];
                words.extend([if *whole { script } else { digest }, "1", &name, &value]);
                match does {
                    Does::CompareAndDelete => change(redis(&words, *member)),
                    Does::CompareAndPexpire { ttl_ms } => {
                        let ttl = ttl_ms.to_string();
                        words.push(&ttl);
                        change(redis(&words, *member))
                    }
                }
            }
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
            Ask::Queue { .. } | Ask::Store { .. } => Vec::new(),
            Ask::Open { session, ttl_ms } => {
                vec![(NO_RESOURCE, Call::Open { session: *session, ttl_ms: *ttl_ms })]
            }
            Ask::KeepAlive { session } => vec![(NO_RESOURCE, Call::KeepAlive { session: *session })],
            Ask::Close { session } => vec![(NO_RESOURCE, Call::Close { session: *session })],
            Ask::Take { resource, owner, ttl_ms, .. } => {
                let (owner, ttl_ms) = (*owner, *ttl_ms);
                vec![(*resource, Call::Acquire { owner, ttl_ms, wait_ms: 0, session: 0 })]
            }
            Ask::Script { resource, owner, does, .. } => {
                let owner = *owner;
                vec![match does {
                    Does::CompareAndDelete => (*resource, Call::ReleaseBy { owner }),
                    Does::CompareAndPexpire { ttl_ms } => {
                        (*resource, Call::RenewBy { owner, ttl_ms: *ttl_ms })
                    }
                }]
            }
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

fn redis<'a>(words: &[&'a str], member: NodeId) -> Command<'a> {
    let member = (member != 0).then_some(Member(member));
    let argv = words.iter().map(|word| word.as_bytes()).collect();
    Command::Redis { db: 0, resp: Resp::Two, member, argv }
}

/// Enters the outcome of a call. `None`: nobody will ever know.
pub fn complete(history: &mut History, call: &OpenCall, reply: Option<&Reply>, now_us: u64) -> Heard {
    let Some(reply) = reply else { return Heard::Unknown };
    let parts = call.operations.len();
    let (heard, outcomes) = match reply {
        Reply::Error(refusal) => match refusal.code() {
            "INDETERMINATE" => return Heard::Unknown,
            "UNAVAILABLE" => (Heard::Failed, vec![Outcome::Failed; parts]),
            "NOSCRIPT" => (Heard::NoScript, vec![Outcome::Failed; parts]),
            "NOSESSION" => (Heard::NoSession, vec![Outcome::Answered(Answer::NoSession); parts]),
            _ => (Heard::Nothing, vec![Outcome::Answered(Answer::Nothing); parts]),
        },
        reply => {
            let (heard, answers) = read_answer(&call.ask, reply);
            (heard, answers.into_iter().map(Outcome::Answered).collect())
        }
    };
    // What one member did, the lock need not show: it may have joined another's grant, or others may go on holding it.
    if call.ask.is_by_member()
        && matches!(heard, Heard::Taken | Heard::Done | Heard::Refused | Heard::Nothing)
    {
        return heard;
    }
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
        (Ask::Acquire { .. }, Reply::GrantedMany { fences, ttl_ms }) => {
            let granted = |fence: &Fence| Answer::Granted { fence: fence.0, ttl_ms: *ttl_ms };
            (
                Heard::Granted(fences.iter().map(|fence| fence.0).collect()),
                fences.iter().map(granted).collect(),
            )
        }
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
        (Ask::Store { .. }, Reply::Status(_)) => (Heard::Done, Vec::new()),
        (Ask::Take { .. }, Reply::Status(_)) => (Heard::Taken, vec![Answer::Taken]),
        (Ask::Take { .. }, Reply::Nil) => (Heard::Busy, vec![Answer::Busy]),
        (Ask::Script { .. }, Reply::Int(1)) => (Heard::Done, vec![Answer::Done]),
        (Ask::Script { .. }, Reply::Int(0)) => (Heard::Refused, vec![Answer::Refused(Reason::NotOwner)]),
        (ask, reply) => panic!("an answer that does not fit its question: {reply:?} to {ask:?}"),
    }
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
