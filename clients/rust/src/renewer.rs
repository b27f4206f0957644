//! The client's one background task: renews leases in batches, ends those that are over, hears the server's pushes, and carries out
//! what handles leave behind: releases, and the clean-up of cancelled acquisitions.

use crate::clock::Time;
use crate::core::{Core, BACKOFF_BASE, BACKOFF_MAX};
use crate::error::{Cause, Failure, Loss};
use crate::lease::Lease;
use crate::links::{backoff, Link, Notice};
use crate::protocol::{
    answer, bytes, field, integer, millis, yes_or_reason, Answer, Dialect, Kind, LockInfo, Terms, Tier,
};
use crate::session::{self, Session};
use futures_util::future::{join_all, BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

/// Resources renewed in one batch.
const BATCH: usize = 256;
/// With nothing to do it looks this often.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long a client that is closed may take to give back what it has, and then its session.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(4);
const SESSION_WITHIN: Duration = Duration::from_secs(1);
/// How often a clean-up is tried.
const CLEAN_UP_ATTEMPTS: u32 = 10;

/// What a handle leaves behind.
#[derive(Debug)]
pub(crate) enum Job {
    /// Give it back. Lost locks are tried once.
    Release { lease: Arc<Lease>, once: bool },
    /// An acquisition was given up while its outcome was not known.
    CleanUp { terms: Box<Terms>, owner: String },
    /// Open the session where there is none.
    Open(oneshot::Sender<Result<Arc<Session>, Failure>>),
    /// Stop, and tell when all is done.
    Close(oneshot::Sender<()>),
    /// Tell when there is nothing under way and nothing due.
    #[cfg(feature = "testing")]
    Settle(oneshot::Sender<()>),
}

/// Work under way. True where the leases must be looked at again.
type Running = FuturesUnordered<BoxFuture<'static, bool>>;

/// The background task ended, by a panic or with its runtime too: nobody renews any more, and nobody would tell of a loss.
struct Ending(Arc<Core>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lose_all();
        self.0.links.close();
    }
}

pub(crate) async fn drive(
    core: Arc<Core>,
    mut jobs: UnboundedReceiver<Job>,
    mut notices: UnboundedReceiver<Notice>,
) {
    let ending = Ending(Arc::clone(&core));
    let mut running = Running::new();
    let mut closing: Option<Instant> = None;
    let mut told = Vec::new();
    let mut settling: Vec<oneshot::Sender<()>> = Vec::new();
    let mut wakes_at = look(&core, &running);
    loop {
        if running.is_empty() && wakes_at > core.clock.now() && !settling.is_empty() {
            // With its budget of polls used up, this task would not go to sleep below at once; a harness that was told already would
            // find nobody to wake and move the clock past every deadline.
            tokio::task::yield_now().await;
            tell(settling.drain(..));
        }
        if closing.is_some_and(|since| running.is_empty() || since.elapsed() >= GIVE_BACK_WITHIN) {
            break;
        }
        let is_open = closing.is_none();
        let must_look = tokio::select! {
            job = jobs.recv(), if is_open => match job {
                Some(Job::Close(sender)) => {
                    told.push(sender);
                    closing = Some(Instant::now());
                    // Whoever still waits for an answer may not get to run before this task has ended.
                    for (terms, owner) in core.take_acquisitions() {
                        let job = Job::CleanUp { terms: Box::new(terms), owner };
                        start(&core, job, &mut running, &mut settling);
                    }
                    // Whatever handles left behind until now is still carried out.
                    while let Ok(job) = jobs.try_recv() {
                        start(&core, job, &mut running, &mut settling);
                    }
                    false
                }
                Some(job) => start(&core, job, &mut running, &mut settling),
                // Every handle is gone.
                None => {
                    closing = Some(Instant::now());
                    false
                }
            },
            Some(notice) = notices.recv() => hear(&core, notice, &running),
            Some(must_look) = running.next(), if !running.is_empty() => must_look,
            () = core.woken() => true,
            () = core.clock.sleep_until(wakes_at) => true,
            () = close_by(closing), if !is_open => false,
        };
        if must_look {
            wakes_at = look(&core, &running);
        }
    }
    let _ = tokio::time::timeout(SESSION_WITHIN, session::close(&core)).await;
    drop(ending);
    tell(told.into_iter().chain(settling));
}

async fn close_by(closing: Option<Instant>) {
    if let Some(since) = closing {
        tokio::time::sleep(GIVE_BACK_WITHIN.saturating_sub(since.elapsed())).await;
    }
}

fn tell(waiting: impl IntoIterator<Item = oneshot::Sender<()>>) {
    for sender in waiting {
        // Who waited may be gone.
        let _ = sender.send(());
    }
}

fn start(core: &Arc<Core>, job: Job, running: &mut Running, settling: &mut Vec<oneshot::Sender<()>>) -> bool {
    let core = Arc::clone(core);
    match job {
        Job::Release { lease, once } => give_back(&core, lease, once, running),
        Job::CleanUp { terms, owner } => running.push(
            async move {
                clean_up(&core, &terms, &owner).await;
                false
            }
            .boxed(),
        ),
        // Who is answered nothing knows that the client is closed.
        Job::Open(_) if core.is_closed() => {}
        Job::Open(sender) => running.push(
            async move {
                // Who asked may be gone; the session is there for the next one.
                let _ = sender.send(core.sessions.open(&core).await);
                true
            }
            .boxed(),
        ),
        Job::Close(sender) => tell([sender]),
        #[cfg(feature = "testing")]
        Job::Settle(sender) => {
            settling.push(sender);
            return true;
        }
    }
    let _ = settling;
    false
}

/// Ends what is over, starts what is due, and says when to look again.
fn look(core: &Arc<Core>, running: &Running) -> Time {
    let now = core.clock.now();
    core.alarm.begin_look(now);
    let mut wakes_at = now + LOOK_EVERY;
    let is_stopped = core.is_stopped.load(Ordering::Acquire);
    let (mut due, mut over, mut ends_at) = (Vec::new(), Vec::new(), None);
    for lease in core.leases().values() {
        let deadline = lease.deadline();
        if lease.is_over() || deadline <= now {
            over.push(Arc::clone(lease));
            continue;
        }
        wakes_at = wakes_at.min(deadline);
        ends_at = Some(ends_at.map_or(deadline, |at: Time| at.min(deadline)));
        let Some(next) = lease.next_renewal().filter(|_| !is_stopped) else { continue };
        if next <= now + lease.may_be_early() {
            due.push(Arc::clone(lease));
        } else {
            wakes_at = wakes_at.min(next);
        }
    }
    core.links.will_end(ends_at);
    for lease in over {
        if !lease.is_over() {
            core.lose(&lease, Loss::new(lease.cause_of_deadline(now)));
        }
        core.unregister(&lease);
        if lease.loss().is_some() && !is_stopped {
            // The server may not know yet. One try, so that the next holder need not wait: by its fence it can hurt nobody.
            give_back(core, lease, true, running);
        }
    }
    for batch in batches(due) {
        for lease in &batch {
            lease.begin_renewal();
        }
        let core = Arc::clone(core);
        running.push(
            async move {
                renew(&core, &batch).await;
                true
            }
            .boxed(),
        );
    }
    if let Some(session) = core.sessions.current().filter(|_| !is_stopped) {
        match session.next() {
            Some(next) if next <= now => keep_alive(core, session, running),
            Some(next) => wakes_at = wakes_at.min(next),
            None => {}
        }
    }
    core.alarm.end_look(wakes_at)
}

/// Whoever wanted the outcome has asked for it; here nobody does.
fn give_back(core: &Arc<Core>, lease: Arc<Lease>, once: bool, running: &Running) {
    let core = Arc::clone(core);
    let work = async move {
        let _ = release_parts(&core, &lease, once).await;
        false
    };
    running.push(work.boxed());
}

fn keep_alive(core: &Arc<Core>, session: Arc<Session>, running: &Running) {
    session.begin();
    let core = Arc::clone(core);
    running.push(
        async move {
            session::keep_alive(&core, &session).await;
            true
        }
        .boxed(),
    );
}

fn batches(due: Vec<Arc<Lease>>) -> Vec<Vec<Arc<Lease>>> {
    let mut batches: Vec<Vec<Arc<Lease>>> = Vec::new();
    let mut room = 0;
    for lease in due {
        if room < lease.parts.len() {
            batches.push(Vec::new());
            room = BATCH.max(lease.parts.len());
        }
        room -= lease.parts.len();
        if let Some(batch) = batches.last_mut() {
            batch.push(lease);
        }
    }
    batches
}

/// Reacts to what a server said by itself.
fn hear(core: &Arc<Core>, notice: Notice, running: &Running) -> bool {
    let find = |name: &[u8], fence: i64| {
        let is_meant =
            |lease: &&Arc<Lease>| lease.parts.iter().any(|part| part.fence() == fence && part.name == name);
        core.leases().values().find(is_meant).cloned()
    };
    match notice {
        Notice::Lost { name, fence, cause, successor } => {
            let loss = Loss { cause: Cause::from_word(&cause), successor };
            let found = find(&name, fence).or_else(|| {
                core.note_early(name.clone(), fence, loss.clone());
                // It may have become known meanwhile.
                find(&name, fence)
            });
            if let Some(lease) = found {
                core.lose(&lease, loss);
                if lease.parts.len() > 1 {
                    // Half a multi-lock protects nothing: the other half is given back.
                    give_back(core, lease, true, running);
                }
            }
        }
        Notice::Suspect { name, fence } => {
            if let Some(lease) = find(&name, fence) {
                lease.suspect();
            }
        }
        // Connected again at once: the keep-alive of the session does it, and the renewals of locks without one. What is lost until then
        // is told to nobody.
        Notice::Disconnected { link } => {
            if core.links.shared_number() != Some(link) {
                return false;
            }
            let now = core.clock.now();
            if let Some(session) = core.sessions.current() {
                session.reconnected(now);
            }
            for lease in core.leases().values().filter(|lease| lease.session.is_none()) {
                lease.renew_now(now);
            }
            return true;
        }
        Notice::Reconnected => {
            if let Some(session) =
                core.sessions.current().filter(|_| !core.is_stopped.load(Ordering::Acquire))
            {
                let core = Arc::clone(core);
                running.push(
                    async move {
                        session::reconnect(&core, &session).await;
                        true
                    }
                    .boxed(),
                );
            }
        }
    }
    false
}

/// Renews a batch: every command is written before the first answer is waited for.
async fn renew(core: &Core, leases: &[Arc<Lease>]) {
    let within = leases.iter().map(|lease| lease.ttl / 3).min().unwrap_or_default();
    let within = within.max(Duration::from_millis(20)).min(core.settings.attempt_timeout);
    let Ok(Ok(link)) = tokio::time::timeout(within, core.links.shared()).await else {
        for lease in leases {
            lease.renewal_failed(core.clock.now());
        }
        return;
    };
    let renewals = leases.iter().map(|lease| renew_one(core, &link, lease, within));
    join_all(renewals).await;
}

/// Renews all resources of a lock. True where it is still held.
pub(crate) async fn renew_one(core: &Core, link: &Link, lease: &Arc<Lease>, within: Duration) -> bool {
    let sent = core.clock.now();
    let dialect = core.links.dialect();
    let fences = lease.fences();
    let commands: Vec<_> = lease
        .parts
        .iter()
        .zip(&fences)
        .map(|(part, fence)| dialect.renew(&part.name, *fence, lease.ttl, lease.tier))
        .collect();
    let outcomes = join_all(commands.iter().map(|cmd| link.request(cmd, within))).await;
    let mut granted = lease.ttl;
    for outcome in &outcomes {
        core.note(Some(link), outcome);
        match outcome.as_ref().map(yes_or_reason) {
            Ok(Ok(Ok(ttl))) => granted = granted.min(integer(ttl).map_or(Duration::ZERO, millis)),
            Ok(Ok(Err(_))) if lease.fences() != fences => {
                // Of a fence that a conversion has replaced meanwhile: nobody asked about the new one.
                lease.renewal_failed(core.clock.now());
                return false;
            }
            Ok(Ok(Err(_))) if lease.may_be_converted() => {
                if Box::pin(ask_by_owner(core, lease)).await.is_ok() && !lease.is_over() {
                    lease.renewal_failed(core.clock.now());
                }
                return false;
            }
            Ok(Ok(Err(reason))) => {
                core.lose(lease, Loss::new(Cause::from_word(reason)));
                if lease.parts.len() > 1 {
                    let _ = release_parts(core, lease, true).await;
                }
                return false;
            }
            Ok(Err(_)) | Err(_) => {
                lease.renewal_failed(core.clock.now());
                return false;
            }
        }
    }
    lease.renewed(sent, granted);
    true
}

/// The answer to a conversion is not known: by its owner the server tells the fence and the kind that are held now. Where it holds
/// nothing, it is lost.
pub(crate) async fn ask_by_owner(core: &Core, lease: &Lease) -> Result<(), Failure> {
    let part = &lease.parts[0];
    let asked = part.fence();
    let outcome = core.ask(&Dialect::Commands.info(&part.name, lease.tier)).await;
    let value = outcome.inspect_err(|_| lease.renewal_failed(core.clock.now()))?;
    let info = LockInfo::read(&value)
        .map_err(|error| Failure::Server { code: "ERR".into(), text: error.to_string() })?;
    if part.fence() != asked {
        // The answer to the conversion came meanwhile.
        return Ok(());
    }
    match info.holders.iter().find(|holder| holder.owner == lease.owner.as_bytes()) {
        Some(own) => {
            part.set_fence(own.fence);
            let is_shared = field(&value, "mode").and_then(bytes) == Some(b"shared");
            lease.set_kind(if is_shared { Kind::Shared } else { Kind::Exclusive });
            core.catch_up(lease);
        }
        None => core.lose(lease, Loss::new(Cause::Expired)),
    }
    Ok(())
}

/// Gives all resources of a lock back. The reason of the first that was not, where the server answered.
pub(crate) async fn release_parts(core: &Core, lease: &Lease, once: bool) -> Result<Option<Cause>, Failure> {
    let parts = lease.parts.iter().map(|part| release_part(core, &part.name, part.fence(), lease.tier, once));
    let mut cause = None;
    for outcome in join_all(parts).await {
        cause = cause.or(outcome?);
    }
    if cause.is_some() && lease.may_be_converted() {
        // Perhaps held under another fence than this process knows.
        for part in &lease.parts {
            if release_owned(core, &part.name, &lease.owner, lease.tier).await? {
                cause = None;
            }
        }
    }
    Ok(cause)
}

/// Gives back what the owner holds, by whatever fence. True where there was something.
async fn release_owned(core: &Core, name: &[u8], owner: &str, tier: Option<Tier>) -> Result<bool, Failure> {
    let within = core.settings.attempt_timeout;
    let value = core.attempt(&Dialect::Commands.info(name, tier), within).await?;
    let holders = LockInfo::read(&value).map(|info| info.holders).unwrap_or_default();
    match holders.iter().find(|holder| holder.owner == owner.as_bytes()) {
        Some(own) => Ok(release_part(core, name, own.fence, tier, true).await?.is_none()),
        None => Ok(false),
    }
}

async fn release_part(
    core: &Core,
    name: &[u8],
    fence: i64,
    tier: Option<Tier>,
    once: bool,
) -> Result<Option<Cause>, Failure> {
    let cmd = core.links.dialect().release(name, fence, tier);
    let (outcome, unsure) = if once {
        (core.attempt(&cmd, core.settings.attempt_timeout).await, 0)
    } else {
        core.ask_counted(&cmd).await
    };
    let value = outcome?;
    let answered = yes_or_reason(&value)
        .map_err(|error| Failure::Server { code: "ERR".into(), text: error.to_string() })?;
    Ok(match answered {
        Ok(_) => None,
        // The first answer was lost: this is the second.
        Err(b"already_released") if unsure > 0 => None,
        Err(reason) => Some(Cause::from_word(reason)),
    })
}

/// An acquisition was given up: whatever the server granted it is given back.
async fn clean_up(core: &Core, terms: &Terms, owner: &str) {
    for attempt in 0..CLEAN_UP_ATTEMPTS {
        // A second look: the request may have been under way when the first was taken.
        if clean_up_once(core, terms, owner).await.is_ok() && attempt > 0 {
            return;
        }
        tokio::time::sleep(backoff(attempt + 2, BACKOFF_BASE, BACKOFF_MAX)).await;
    }
}

async fn clean_up_once(core: &Core, terms: &Terms, owner: &str) -> Result<(), Failure> {
    match core.links.dialect() {
        Dialect::Functions => {
            let within = core.settings.attempt_timeout;
            let value = core.attempt(&Dialect::cancel(terms, owner), within).await?;
            if let Ok(Answer::Granted(fences, _)) = answer(&value) {
                for (name, fence) in terms.names.iter().zip(fences) {
                    let _ = release_part(core, name, fence, terms.tier, true).await?;
                }
            }
        }
        Dialect::Commands => {
            for name in &terms.names {
                release_owned(core, name, owner, terms.tier).await?;
            }
        }
    }
    Ok(())
}
