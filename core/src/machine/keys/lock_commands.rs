//! `LOCK.*` commands inside a transaction or a script: the same as outside, but for waiting. What cannot be had at once is not had, as with
//! `BLPOP` inside `MULTI`.

use crate::grammar::{self, errors, Request};
use crate::keyspace::Resp;
use crate::machine::explain::SHOWN_MAX;
use crate::machine::locks::acquire::AcquireParams;
use crate::machine::locks::convert::ConvertParams;
use crate::machine::locks::lock::Phase;
use crate::machine::locks::multi::Several;
use crate::machine::log::command::{Command, Db};
use crate::machine::log::request::{self, MachineWork, RequestContext};
use crate::machine::{version, Applied, Machine, Query};
use crate::reply::{Refusal, Reply};
use crate::types::{LockKind, SessionId, SessionScope};

/// Whether a command of ours may stand in a transaction: what it does must be the machine's business alone.
pub fn check_in_transaction(request: &Request<'_>) -> Result<(), Refusal> {
    let name = match request {
        Request::Acquire(_)
        | Request::Release(_)
        | Request::Renew(_)
        | Request::Convert(_)
        | Request::Info(_)
        | Request::MAcquire(_)
        | Request::MRelease(_)
        | Request::Queue(_)
        | Request::Scan(_)
        | Request::ForceRelease(_) => return Ok(()),
        // Its reply is not the same on every node.
        Request::Explain(_) => "LOCK.EXPLAIN",
        Request::Notify(_) => "LOCK.NOTIFY",
        Request::Session(_) => "LOCK.SESSION",
        Request::Cluster(_) => "LOCK.CLUSTER",
        Request::FenceCheck(_) | Request::FenceGet(_) | Request::FenceCall(_) => "FENCE",
    };
    Err(Refusal::new(format!("ERR {name} cannot be part of a transaction on the correctness tier")))
}

impl Machine {
    pub(crate) fn lock_at_once(&mut self, db: Db, argv: &[&[u8]], out: &mut Applied) -> Reply {
        match self.try_lock_at_once(db, argv, out) {
            Ok(reply) => reply,
            Err(refusal) => refusal.into(),
        }
    }

    /// The names of locks a command may change.
    pub(crate) fn names_changed<'a>(argv: &'a [&'a [u8]]) -> Several<&'a [u8]> {
        match grammar::parse(argv) {
            Some(Ok(Request::Acquire(request))) => Several::from_slice(&[request.resource]),
            Some(Ok(Request::Release(request))) => Several::from_slice(&[request.resource]),
            Some(Ok(Request::Renew(request))) => Several::from_slice(&[request.resource]),
            Some(Ok(Request::ForceRelease(request))) => Several::from_slice(&[request.resource]),
            Some(Ok(Request::Convert(request))) => Several::from_slice(&[request.resource]),
            Some(Ok(Request::MAcquire(request))) => request.resources.iter().copied().collect(),
            Some(Ok(Request::MRelease(request))) => request.pairs.iter().map(|(name, _)| *name).collect(),
            Some(Ok(
                Request::Info(_)
                | Request::Explain(_)
                | Request::Notify(_)
                | Request::Queue(_)
                | Request::Scan(_)
                | Request::Session(_)
                | Request::Cluster(_)
                | Request::FenceCheck(_)
                | Request::FenceGet(_)
                | Request::FenceCall(_),
            ))
            | Some(Err(_))
            | None => Several::new(),
        }
    }

    /// What is shown here is logged: it is what the cluster's version shows.
    fn look_in_transaction(&self, query: Query<'_>) -> Result<Reply, Refusal> {
        if self.upgrade.version < version::SECOND {
            let mut reply = self.query(query);
            if let Reply::Info(info) = &mut reply {
                info.holders = None;
            }
            return Ok(reply);
        }
        self.work.charge(self.work_of(&query))?;
        let before = self.work.total();
        let reply = self.query(query);
        self.work.charge_done(self.work.total() - before)?;
        Ok(reply)
    }

    /// Units of work of a look, as far as they are known before. `LOCK.SCAN` counts its own.
    fn work_of(&self, query: &Query<'_>) -> u64 {
        let (Query::Info { db, resource, .. } | Query::Queue { db, resource }) = *query else { return 1 };
        self.work_of_look(db, resource)
    }

    /// Of `LOCK.INFO` or `LOCK.QUEUE`.
    pub(crate) fn work_of_look(&self, db: Db, resource: &[u8]) -> u64 {
        let Some(slot) = self.names.find(&self.locks, db, resource) else { return 1 };
        let lock = &self.locks[slot];
        let holders = match lock.phase {
            Phase::Several { holders, .. } => u64::from(holders),
            Phase::Held { .. } | Phase::Awaited | Phase::Idle { .. } => 1,
        };
        1 + 2 * u64::from(lock.queue.len) + 8 * holders.min(SHOWN_MAX as u64) + holders / 16
    }

    fn try_lock_at_once(&mut self, db: Db, argv: &[&[u8]], out: &mut Applied) -> Result<Reply, Refusal> {
        // Every grant raises the number of events: no two made-up owners that hold a lock are the same.
        let owner = format!("{}-{}", self.clock.wall_us, self.event_seq);
        let Some(request) = grammar::parse(argv) else { unreachable!("only names of ours come here") };
        let request = request?;
        check_in_transaction(&request)?;
        if matches!(&request, Request::Scan(scan) if scan.is_count_cut && self.upgrade.version < version::SECOND)
        {
            return Err(errors::scan_count());
        }
        let context = RequestContext {
            db,
            owner: owner.as_bytes(),
            session: SessionId(0),
            // Whether its client is an administrator is not in the log.
            sessions: SessionScope::Of(self.acting_user),
            resp: Resp::Two,
            guarded: &[],
        };
        let work = request::work(request, context)?;
        let user = self.acting_user;
        Ok(match work {
            MachineWork::Look(query) => self.look_in_transaction(query)?,
            MachineWork::Change(Command::Acquire { db, resource, ttl_ms, owner, session, .. }) => {
                let (kind, value) = (LockKind::Exclusive, &[][..]);
                let params =
                    AcquireParams { id: None, ttl_ms, wait_ms: 0, owner, user, session, kind, value };
                self.acquire(db, resource, &params, out).expect("it does not wait")
            }
            MachineWork::Change(Command::AcquireWith {
                db,
                resource,
                ttl_ms,
                owner,
                session,
                kind,
                value,
                ..
            }) => {
                let params =
                    AcquireParams { id: None, ttl_ms, wait_ms: 0, owner, user, session, kind, value };
                self.acquire(db, resource, &params, out).expect("it does not wait")
            }
            MachineWork::Change(Command::MAcquireShared {
                db, resources, ttl_ms, owner, session, ..
            }) => {
                let (kind, value) = (LockKind::Shared, &[][..]);
                let params =
                    AcquireParams { id: None, ttl_ms, wait_ms: 0, owner, user, session, kind, value };
                self.acquire_many(db, &resources, &params, out).expect("it does not wait")
            }
            MachineWork::Change(Command::Convert { db, resource, fence, to, .. }) => {
                let params = ConvertParams { id: None, db, resource, fence, to, wait_ms: 0 };
                self.convert(&params, out).expect("it does not wait")
            }
            MachineWork::Change(Command::ForceReleaseOne { db, resource, fence }) => {
                self.force_release_one(db, resource, fence, out)
            }
            MachineWork::Change(Command::MAcquire { db, resources, ttl_ms, owner, session, .. }) => {
                let (kind, value) = (LockKind::Exclusive, &[][..]);
                let params =
                    AcquireParams { id: None, ttl_ms, wait_ms: 0, owner, user, session, kind, value };
                self.acquire_many(db, &resources, &params, out).expect("it does not wait")
            }
            MachineWork::Change(Command::Release { db, resource, fence }) => {
                self.release(db, resource, fence, out)
            }
            MachineWork::Change(Command::Renew { db, resource, fence, ttl_ms }) => {
                self.renew(db, resource, fence, ttl_ms, out)
            }
            MachineWork::Change(Command::MRelease { db, pairs }) => self.release_many(db, &pairs, out),
            MachineWork::Change(Command::ForceRelease { db, resource }) => {
                self.force_release(db, resource, out)
            }
            MachineWork::Change(other) => unreachable!("checked before: {other:?}"),
        })
    }
}
