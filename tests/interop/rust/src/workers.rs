//! Workers that take one lock in turn through all nodes, and the judge who looks for two holders at once.

use crate::locker::{require, Fault, Locker, Outcome};
use crate::trial::{Trial, LONG_TTL};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const COUNT: usize = 4;

/// A time during which one worker surely held the lock: from the reply of its acquire until it began to release, but
/// no longer than its ttl after it first asked.
#[derive(Clone, Copy)]
struct Stay {
    from: Instant,
    to: Instant,
    /// `None` where it could not be read in that time.
    fence: Option<i64>,
}

pub(crate) struct Workers {
    trial: Trial,
    name: String,
    ttl: Duration,
    /// Errors do not end a worker: the leader is about to be killed.
    tolerant: bool,
    pub(crate) ended: AtomicBool,
    /// Added to by reading, pausing and writing, so that two holders lose an update.
    counter: AtomicI64,
    stays: Mutex<Vec<Stay>>,
}

impl Workers {
    pub(crate) fn new(trial: Trial, name: String, ttl: Duration, tolerant: bool) -> Arc<Workers> {
        let (ended, counter, stays) = (AtomicBool::new(false), AtomicI64::new(0), Mutex::new(Vec::new()));
        Arc::new(Workers { trial, name, ttl, tolerant, ended, counter, stays })
    }

    /// Until `ended` is set.
    pub(crate) async fn run(self: Arc<Self>) -> Outcome<()> {
        let mut tasks = Vec::new();
        for n in 0..COUNT {
            let (workers, locker) = (self.clone(), self.trial.open(n, self.ttl).await?);
            tasks.push(tokio::spawn(async move { workers.work(&*locker).await }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }

    async fn work(&self, locker: &dyn Locker) -> Outcome<()> {
        while !self.ended.load(Ordering::SeqCst) {
            match self.once(locker).await {
                Err(_) if self.tolerant => sleep(Duration::from_millis(50)).await,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn once(&self, locker: &dyn Locker) -> Outcome<()> {
        let asked = Instant::now();
        let Ok(held) = timeout(Duration::from_secs(10), locker.wait(&self.name)).await else {
            return Err(Fault::Other("not served within 10 s".into()));
        };
        let (held, from) = (held?, Instant::now());
        let seen = self.counter.load(Ordering::SeqCst);
        let info = timeout(self.ttl / 2, self.trial.info(&self.name)).await;
        sleep(Duration::from_millis(2)).await;
        self.counter.store(seen + 1, Ordering::SeqCst);
        let now = Instant::now();
        let to = now.min(asked + self.ttl);
        let fence = info.ok().and_then(Result::ok).map(|info| info.fence).filter(|_| to == now);
        if to > from {
            self.stays.lock().expect("nobody panics while holding it").push(Stay { from, to, fence });
        }
        held.release().await
    }

    pub(crate) fn stayed(&self) -> usize {
        self.stays.lock().expect("nobody panics while holding it").len()
    }

    /// No two stays overlap, and the fences rise from each to the next.
    pub(crate) fn judge(&self) -> Outcome<()> {
        let mut stays = self.stays.lock().expect("nobody panics while holding it").clone();
        stays.sort_by_key(|stay| stay.from);
        let mut last: Option<Stay> = None;
        let mut fence = 0;
        for stay in stays {
            if let Some(last) = last {
                let (one, other) = (last.fence, stay.fence);
                require!(
                    stay.from >= last.to,
                    "two holders at once for {:?} (fences {one:?}, {other:?})",
                    last.to - stay.from
                );
            }
            if let Some(next) = stay.fence {
                require!(next > fence, "fence {next} came after {fence}");
                fence = next;
            }
            last = Some(stay);
        }
        require!(fence > 0, "no fence could be read");
        Ok(())
    }
}

/// No update may be lost, and nobody may be refused for other reasons than the lock.
pub(crate) async fn exclusion(t: Trial) -> Outcome<()> {
    let workers = Workers::new(t.clone(), t.name("exclusion"), LONG_TTL, false);
    let run = tokio::spawn(workers.clone().run());
    let deadline = Instant::now() + Duration::from_secs(30);
    while workers.stayed() < 30 && !run.is_finished() && Instant::now() < deadline {
        sleep(Duration::from_millis(10)).await;
    }
    workers.ended.store(true, Ordering::SeqCst);
    run.await??;
    let (done, counted) = (workers.stayed() as i64, workers.counter.load(Ordering::SeqCst));
    require!(done >= 30, "only {done} turns in 30 s");
    require!(done == counted, "{} of {done} updates were lost", done - counted);
    workers.judge()
}
