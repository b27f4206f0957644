//! Passes connections on, each byte a fixed time after it came: a network with a delay, where the kernel offers none.

use super::local;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Chunks on their way in one direction: more than a connection ever has within a few milliseconds.
const ON_THE_WAY_MAX: usize = 4096;
const CHUNK_BYTES: usize = 64 * 1024;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    pub(crate) to: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr, delay: Duration) -> Result<Relay, String> {
        let failed = |error: std::io::Error| format!("cannot relay to {to}: {error}");
        let listener = TcpListener::bind(local(0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let relay = Relay { address, to, stopped: Arc::clone(&stopped) };
        std::thread::spawn(move || {
            for incoming in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(incoming) = incoming else { continue };
                // Where nobody listens, the one who dialled is told by the end of its connection.
                if let Ok(outgoing) = TcpStream::connect(to) {
                    let _ = join(&incoming, &outgoing, delay);
                }
            }
        });
        Ok(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(one: &TcpStream, other: &TcpStream, delay: Duration) -> std::io::Result<()> {
    for (from, to) in [(one, other), (other, one)] {
        to.set_nodelay(true)?;
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        let (chunks, due) = sync_channel::<(Instant, Vec<u8>)>(ON_THE_WAY_MAX);
        let from_end = from.try_clone()?;
        std::thread::spawn(move || {
            let mut chunk = vec![0; CHUNK_BYTES];
            while let Ok(count @ 1..) = from.read(&mut chunk) {
                if chunks.send((Instant::now() + delay, chunk[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            deliver(&due, &mut to);
            let _ = to.shutdown(Shutdown::Write);
            // The reader ends too where nobody takes what it reads.
            let _ = from_end.shutdown(Shutdown::Read);
        });
    }
    Ok(())
}

fn deliver(due: &Receiver<(Instant, Vec<u8>)>, to: &mut TcpStream) {
    for (at, bytes) in due {
        let early = at.saturating_duration_since(Instant::now());
        if !early.is_zero() {
            std::thread::sleep(early);
        }
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_late_in_both_directions_and_so_does_the_end() {
        let listener = TcpListener::bind(local(0)).expect("a port");
        let delay = Duration::from_millis(20);
        let relay = Relay::start(listener.local_addr().expect("its address"), delay).expect("a relay");
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut text = Vec::new();
            let mut byte = [0; 1];
            while stream.read(&mut byte).expect("readable") == 1 {
                text.push(byte[0]);
                stream.write_all(&byte).expect("writable");
            }
            text
        });
        let mut stream = TcpStream::connect(relay.address).expect("relayed");
        let start = Instant::now();
        stream.write_all(b"fence").expect("writable");
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("echoed");
        assert_eq!(&answer, b"fence");
        assert!(start.elapsed() >= 2 * delay, "it took {:?}", start.elapsed());
        stream.shutdown(Shutdown::Write).expect("open");
        assert_eq!(echo.join().expect("the echo ends"), b"fence");
    }
}
