//! Stands in front of the peer port of one node, passes everything on, and keeps the beginning of what its peers send: sessions to be
//! replayed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const SESSION_BYTES_MAX: usize = 16 * 1024;
const SESSIONS_MAX: usize = 8;

pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    sessions: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// Passes connections on to `to`, as long as this process lives.
    pub(crate) fn start(to: SocketAddr) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sessions = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sessions);
        std::thread::spawn(move || {
            for incoming in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || pass_on(incoming, to, &kept));
            }
        });
        Recorder { address, sessions }
    }

    pub(crate) fn sessions(&self) -> Vec<Vec<u8>> {
        self.sessions.lock().unwrap().iter().filter(|bytes| !bytes.is_empty()).cloned().collect()
    }
}

fn pass_on(from: TcpStream, to: SocketAddr, sessions: &Arc<Mutex<Vec<Vec<u8>>>>) {
    let Ok(onward) = TcpStream::connect(to) else { return };
    let (back_from, back_to) = (onward.try_clone().unwrap(), from.try_clone().unwrap());
    std::thread::spawn(move || copy(back_from, back_to, |_| {}));
    let place = {
        let mut sessions = sessions.lock().unwrap();
        sessions.push(Vec::new());
        sessions.len() - 1
    };
    copy(from, onward, |bytes| {
        let mut sessions = sessions.lock().unwrap();
        let session = &mut sessions[place];
        if place < SESSIONS_MAX && session.len() < SESSION_BYTES_MAX {
            session.extend_from_slice(bytes);
        }
    });
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        seen(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
