//! SIGTERM and SIGINT: leadership is handed over, then the process ends, within five seconds.

use std::io;
use std::time::Duration;
use tokio::signal::unix::{signal, Signal, SignalKind};

/// The longest the node may take to hand over. The rest of the five seconds is for the process to end.
pub const HAND_OVER_WITHIN: Duration = Duration::from_millis(4_000);

/// Listens from its making on, so that no signal is missed while the node starts.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn listen() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Returns the name of the next signal that asks for the end.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
