//! A TCP relay in front of a listener, so that its connections can be cut while both ends live.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Takes connections on an address of its own and passes their bytes on, both ways.
pub struct Relay {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        let address = listener.local_addr().expect("it is bound");
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let accepted = open.clone();
        // Ends with the process: there is nothing to clean up.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // The target may be down: whoever dialled sees the end of the connection.
                if let Ok(far) = TcpStream::connect(target) {
                    join(&near, &far);
                    accepted.lock().unwrap_or_else(PoisonError::into_inner).extend([near, far]);
                }
            }
        });
        Relay { address, open }
    }

    /// Ends every connection there is; bytes under way are lost. New ones are taken. Answers how many there were.
    pub fn cut(&self) -> usize {
        let cut: Vec<TcpStream> =
            std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        cut.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        cut.len() / 2
    }
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
