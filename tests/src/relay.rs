//! A TCP relay in front of a node's peer port, so that its connections can be cut while both ends live.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a peer's greeting begins, and where behind that its node's id stands: see `transport::greeting`.
const MAGIC: &[u8] = b"RFPEER1\n";
const ID_AT: usize = MAGIC.len() + 3 * 2 + 8;

/// Takes connections on an address of its own and passes their bytes on, both ways.
pub struct Relay {
    pub address: SocketAddr,
    links: Arc<Mutex<Links>>,
}

#[derive(Default)]
struct Links {
    /// Who dialled, and both ends.
    open: Vec<(u64, [TcpStream; 2])>,
    /// Nobody is let through any more.
    is_closed: bool,
    /// Nodes that are not let through.
    barred: Vec<u64>,
}

impl Links {
    fn cut(&mut self, which: impl Fn(u64) -> bool) -> usize {
        let (cut, kept) = std::mem::take(&mut self.open).into_iter().partition(|(by, _)| which(*by));
        self.open = kept;
        let cut: Vec<(u64, [TcpStream; 2])> = cut;
        cut.iter().flat_map(|(_, ends)| ends).for_each(|end| drop(end.shutdown(Shutdown::Both)));
        cut.len()
    }
}

impl Relay {
    pub fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        let address = listener.local_addr().expect("it is bound");
        let links: Arc<Mutex<Links>> = Arc::default();
        let accepted = links.clone();
        // Ends with the process: there is nothing to clean up.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let links = accepted.clone();
                std::thread::spawn(move || let_through(near, target, &links));
            }
        });
        Relay { address, links }
    }

    /// Ends every connection there is; bytes under way are lost. New ones are taken. Answers how many there were.
    pub fn cut(&self) -> usize {
        lock(&self.links).cut(|_| true)
    }

    /// Ends every connection there is, and takes no more.
    pub fn close(&self) {
        let mut links = lock(&self.links);
        links.is_closed = true;
        links.cut(|_| true);
    }

    /// Takes back [`Relay::close`] and [`Relay::bar`].
    pub fn open(&self) {
        let mut links = lock(&self.links);
        links.is_closed = false;
        links.barred.clear();
    }

    /// Ends every connection that this node has dialled, and takes no more from it.
    pub fn bar(&self, id: u64) {
        let mut links = lock(&self.links);
        links.barred.push(id);
        links.cut(|by| by == id);
    }
}

fn lock(links: &Mutex<Links>) -> MutexGuard<'_, Links> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}

fn let_through(near: TcpStream, target: SocketAddr, links: &Mutex<Links>) {
    let by = dialled_by(&near);
    // The target may be down: whoever dialled sees the end of the connection.
    let Ok(far) = TcpStream::connect(target) else { return };
    let mut links = lock(links);
    if !links.is_closed && !links.barred.contains(&by) {
        join(&near, &far);
        links.open.push((by, [near, far]));
    }
}

/// The node that greets; 0 where it does not within a while.
fn dialled_by(near: &TcpStream) -> u64 {
    let mut seen = [0; 256];
    for _ in 0..1_000 {
        let count = near.peek(&mut seen).unwrap_or(0);
        let begin = seen[..count].windows(MAGIC.len()).position(|bytes| bytes == MAGIC);
        let id = begin.and_then(|at| seen[..count].get(at + ID_AT..)?.first_chunk::<8>());
        match id {
            Some(id) => return u64::from_le_bytes(*id),
            None if count == 0 => return 0,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    0
}

fn join(near: &TcpStream, far: &TcpStream) {
    for (from, to) in [(near, far), (far, near)] {
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        let _ = to.set_nodelay(true);
        std::thread::spawn(move || pass_on(from, to));
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
