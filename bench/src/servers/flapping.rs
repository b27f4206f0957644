//! Passes connections between nodes on, until told to close them, to refuse new ones for a while, or to hold up what they carry.

use super::local;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a relay looks whether it may go on.
const LOOK: Duration = Duration::from_millis(1);
const CHUNK_BYTES: usize = 64 * 1024;

/// One for each node that others reach through it.
pub(crate) struct FlappingRelay {
    pub(crate) address: SocketAddr,
    pub(crate) to: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    refuses: AtomicBool,
    holds: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl State {
    fn close_all(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn is_set(flag: &AtomicBool) -> bool {
        flag.load(Ordering::Relaxed)
    }
}

impl FlappingRelay {
    pub(crate) fn start(to: SocketAddr) -> Result<FlappingRelay, String> {
        let failed = |error: std::io::Error| format!("cannot relay to {to}: {error}");
        let listener = TcpListener::bind(local(0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let state = Arc::new(State::default());
        let relay = FlappingRelay { address, to, state: Arc::clone(&state) };
        std::thread::spawn(move || listen(listener, to, &state));
        Ok(relay)
    }

    /// Both ends of every connection are told at once; they may connect again.
    pub(crate) fn close_all(&self) {
        self.state.close_all();
    }

    /// Closes all, and while it is on the port refuses.
    pub(crate) fn refuse(&self, on: bool) {
        self.state.refuses.store(on, Ordering::Relaxed);
        self.state.close_all();
    }

    /// Nothing goes either way while it is on; nothing is lost.
    pub(crate) fn hold(&self, on: bool) {
        self.state.holds.store(on, Ordering::Relaxed);
    }
}

impl Drop for FlappingRelay {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.state.close_all();
    }
}

fn listen(listener: TcpListener, to: SocketAddr, state: &Arc<State>) {
    let address = listener.local_addr();
    let mut listener = Some(listener);
    while !State::is_set(&state.stopped) {
        if State::is_set(&state.refuses) {
            listener = None;
        } else if listener.is_none() {
            listener = address.as_ref().ok().and_then(|address| TcpListener::bind(address).ok());
        }
        match listener.as_ref().map(|listener| accept(listener, to, state)) {
            Some(Ok(())) => {}
            Some(Err(_)) | None => std::thread::sleep(LOOK),
        }
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, state: &Arc<State>) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let (incoming, _) = listener.accept()?;
    incoming.set_nonblocking(false)?;
    let outgoing = TcpStream::connect(to)?;
    for (from, to) in [(&incoming, &outgoing), (&outgoing, &incoming)] {
        to.set_nodelay(true)?;
        let (from, to, state) = (from.try_clone()?, to.try_clone()?, Arc::clone(state));
        std::thread::spawn(move || {
            let _ = pass_on(&from, &to, &state);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    let mut connections = state.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // Those that ended by themselves are forgotten.
    connections.retain(|connection| connection.peer_addr().is_ok());
    connections.extend([incoming, outgoing]);
    Ok(())
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, state: &State) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        while State::is_set(&state.holds) && !State::is_set(&state.stopped) {
            std::thread::sleep(LOOK);
        }
        to.write_all(&chunk[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind(local(0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                std::thread::spawn(move || {
                    let mut byte = [0; 1];
                    while stream.read(&mut byte).is_ok_and(|count| count == 1) {
                        stream.write_all(&byte).expect("writable");
                    }
                });
            }
        });
        address
    }

    fn is_answered(mut stream: &TcpStream) -> std::io::Result<bool> {
        stream.write_all(b"x")?;
        Ok(stream.read(&mut [0; 1])? == 1)
    }

    #[test]
    fn connections_are_closed_refused_and_held_up() {
        let relay = FlappingRelay::start(echo()).expect("a relay");
        let stream = TcpStream::connect(relay.address).expect("relayed");
        assert!(is_answered(&stream).expect("passed on"));
        relay.close_all();
        assert!(!is_answered(&stream).unwrap_or(false), "closed");
        relay.refuse(true);
        while TcpStream::connect(relay.address).is_ok() {
            std::thread::sleep(LOOK);
        }
        relay.refuse(false);
        let stream = loop {
            match TcpStream::connect(relay.address) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        assert!(is_answered(&stream).expect("passed on again"));
        relay.hold(true);
        stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
        assert!(is_answered(&stream).is_err(), "held up");
        relay.hold(false);
        stream.set_read_timeout(None).expect("no limit");
        assert_eq!((&stream).read(&mut [0; 1]).expect("nothing is lost"), 1);
    }
}
