//! Honest clients: logged in through TLS at every node before the attack, taking and releasing locks all the time. Every operation must
//! succeed; how long each takes is kept.

use crate::support::tls::TlsClient;
use crate::target::Target;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) struct Honest {
    stop: Arc<AtomicBool>,
    times: Arc<Mutex<Vec<Duration>>>,
    clients: Vec<JoinHandle<()>>,
}

/// How long operations took.
pub(crate) struct Latency {
    pub(crate) operations: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Honest {
    pub(crate) fn start(target: &Target) -> Honest {
        let (stop, times) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let clients = (0..target.nodes.len())
            .map(|at| {
                let (client, stop, times) = (target.honest_client(at), Arc::clone(&stop), Arc::clone(&times));
                std::thread::spawn(move || serve(client, &format!("app:{at}"), &stop, &times))
            })
            .collect();
        Honest { stop, times, clients }
    }

    /// What was measured since the last time.
    pub(crate) fn take(&self) -> Latency {
        let mut times = std::mem::take(&mut *self.times.lock().unwrap());
        times.sort_unstable();
        let at = |share: f64| {
            let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
        };
        Latency { operations: times.len(), p50_ms: at(0.5), p99_ms: at(0.99) }
    }

    pub(crate) fn stop(mut self) -> Latency {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.drain(..).for_each(|client| client.join().expect("every operation succeeds"));
        self.take()
    }
}

fn serve(mut client: TlsClient, name: &str, stop: &AtomicBool, times: &Mutex<Vec<Duration>>) {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let granted = client.ask(&["LOCK.ACQUIRE", name, "60000"]);
        assert!(granted.starts_with('('), "{granted}");
        let fence = granted.trim_matches(['(', ')']).split(',').next().unwrap().to_owned();
        assert_eq!(client.ask(&["LOCK.RELEASE", name, &fence]), "(1, \"ok\")");
        times.lock().unwrap().push(began.elapsed());
        // A client has other things to do.
        std::thread::sleep(Duration::from_millis(5));
    }
}
