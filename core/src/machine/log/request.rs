//! From a client's words to what the machine takes: [`Request`] → [`Command`] or [`Query`].
//!
//! For the proxy, the embedded tier and tests. The tier has been decided before; here nobody asks for it.

use crate::grammar::session::SessionCommand;
use crate::grammar::words::Options;
use crate::grammar::{errors, Request};
use crate::keyspace::Resp;
use crate::machine::log::command::{Command, Db};
use crate::machine::Query;
use crate::reply::Refusal;
use crate::types::{Fence, LockKind, SessionId, SessionScope};

/// What a request asks of the machine.
// It lives for a moment.
#[derive(Clone, Debug, PartialEq)]
pub enum MachineWork<'a> {
    /// To be logged and applied.
    Change(Command<'a>),
    /// To be answered from the state.
    Look(Query<'a>),
}

/// What the front adds to a client's words.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The connection's keyspace.
    pub db: Db,
    /// For an acquire that names no owner: unique, made up by the front.
    pub owner: &'a [u8],
    /// For `LOCK.SESSION OPEN`: fresh, drawn at random.
    pub session: SessionId,
    /// Whose sessions the client may see and close.
    pub sessions: SessionScope,
    /// For `FENCE.CALL`: the connection's protocol and the words of the command it guards.
    pub resp: Resp,
    pub guarded: &'a [&'a [u8]],
}

/// Turns a request into work for the machine. Refused where the machine does not serve the command at all, or where a
/// session's id is none that could have been issued.
pub fn work<'r: 'a, 'a>(
    request: Request<'r>,
    context: RequestContext<'a>,
) -> Result<MachineWork<'a>, Refusal> {
    let db = context.db;
    Ok(match request {
        Request::Acquire(request) => {
            let (wait_ms, owner, session) = acquire_options(&request.options, context)?;
            let (resource, ttl_ms) = (request.resource, request.ttl_ms);
            let (kind, value) = (request.options.kind, request.options.value.unwrap_or_default());
            MachineWork::Change(match kind == LockKind::Exclusive && value.is_empty() {
                true => Command::Acquire { db, resource, ttl_ms, wait_ms, owner, session },
                false => Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value },
            })
        }
        Request::MAcquire(request) => {
            let (wait_ms, owner, session) = acquire_options(&request.options, context)?;
            // Copied into a list that may borrow for a shorter time, as the owner does.
            let resources = request.resources.into_iter().map(|resource| -> &'a [u8] { resource }).collect();
            let ttl_ms = request.ttl_ms;
            MachineWork::Change(match request.options.kind {
                LockKind::Shared => {
                    Command::MAcquireShared { db, resources, ttl_ms, wait_ms, owner, session }
                }
                LockKind::Exclusive | LockKind::Permits { .. } => {
                    Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session }
                }
            })
        }
        Request::Release(request) => {
            MachineWork::Change(Command::Release { db, resource: request.resource, fence: request.fence })
        }
        Request::Renew(request) => {
            let (resource, fence, ttl_ms) = (request.resource, request.fence, request.ttl_ms);
            MachineWork::Change(Command::Renew { db, resource, fence, ttl_ms })
        }
        Request::MRelease(request) => {
            let pairs =
                request.pairs.into_iter().map(|(resource, fence)| -> (&'a [u8], Fence) { (resource, fence) });
            MachineWork::Change(Command::MRelease { db, pairs: pairs.collect() })
        }
        Request::ForceRelease(request) => MachineWork::Change(match request.fence {
            None => Command::ForceRelease { db, resource: request.resource },
            Some(fence) => Command::ForceReleaseOne { db, resource: request.resource, fence },
        }),
        Request::Convert(request) => {
            let (resource, fence, to) = (request.resource, request.fence, request.to);
            let wait_ms = request.wait_ms.unwrap_or(0);
            MachineWork::Change(Command::Convert { db, resource, fence, to, wait_ms })
        }
        Request::Explain(request) => {
            MachineWork::Look(Query::Explain { db, resource: request.resource, sessions: context.sessions })
        }
        Request::Notify(_) => return Err(errors::not_for_the_machine("LOCK.NOTIFY")),
        Request::Info(request) => {
            MachineWork::Look(Query::Info { db, resource: request.resource, sessions: context.sessions })
        }
        Request::Queue(request) => MachineWork::Look(Query::Queue { db, resource: request.resource }),
        Request::Scan(request) => {
            let (cursor, pattern, count) = (request.cursor, request.pattern, request.count);
            MachineWork::Look(Query::Scan { db, cursor, pattern, count })
        }
        Request::Session(request) => session_work(request, context)?,
        Request::Cluster(_) => return Err(errors::not_for_the_machine("LOCK.CLUSTER")),
        Request::FenceCheck(request) => {
            MachineWork::Change(Command::FenceCheck { db, resource: request.resource, fence: request.fence })
        }
        Request::FenceGet(request) => MachineWork::Look(Query::Mark { db, resource: request.resource }),
        Request::FenceCall(request) => MachineWork::Change(Command::FenceCall {
            db,
            resp: context.resp,
            resource: request.resource,
            fence: request.fence,
            argv: context.guarded.iter().copied().collect(),
        }),
    })
}

fn session_work<'a>(
    request: SessionCommand<'a>,
    context: RequestContext<'a>,
) -> Result<MachineWork<'a>, Refusal> {
    Ok(match request {
        SessionCommand::Open { ttl_ms, label, policy: None, age: None } => {
            MachineWork::Change(Command::SessionOpen {
                id: context.session,
                ttl_ms,
                label: label.unwrap_or_default(),
            })
        }
        SessionCommand::Open { ttl_ms, label, policy, age } => {
            MachineWork::Change(Command::SessionOpenWith {
                id: context.session,
                ttl_ms,
                label: label.unwrap_or_default(),
                policy: policy.unwrap_or_default(),
                age: age.unwrap_or_default(),
            })
        }
        SessionCommand::KeepAlive(id) => {
            MachineWork::Change(Command::SessionKeepAlive { id: session_id(id)?, own: false })
        }
        SessionCommand::Close(id) => {
            let any_user = context.sessions == SessionScope::All;
            MachineWork::Change(Command::SessionClose { id: session_id(id)?, any_user })
        }
        SessionCommand::Info(id) => {
            MachineWork::Look(Query::Session { id: session_id(id)?, sessions: context.sessions })
        }
    })
}

type AcquireTerms<'a> = (u64, &'a [u8], Option<SessionId>);

fn acquire_options<'a>(
    options: &Options<'a>,
    context: RequestContext<'a>,
) -> Result<AcquireTerms<'a>, Refusal> {
    let session = options.session.map(session_id).transpose()?;
    Ok((options.wait_ms.unwrap_or(0), options.owner.unwrap_or(context.owner), session))
}

fn session_id(text: &[u8]) -> Result<SessionId, Refusal> {
    SessionId::parse(text).ok_or_else(errors::no_session)
}
