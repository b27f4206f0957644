//! A TCP relay between a client and a server that knows commands from replies: it swallows a reply, answers in the server's place, stops
//! forwarding, or closes its connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The reply is swallowed and the connection closed.
    DropReply,
    /// Not forwarded, answered `UNAVAILABLE`.
    Unavailable,
    /// Forwarded, its reply replaced by `INDETERMINATE`.
    Indeterminate,
}

/// What becomes of the next reply, in the order of the commands.
enum Expected {
    Forward,
    Close,
    Replace(&'static [u8]),
    /// The server was not asked.
    Own(&'static [u8]),
}

const UNAVAILABLE: &[u8] = b"-UNAVAILABLE said by the relay\r\n";
const INDETERMINATE: &[u8] = b"-INDETERMINATE said by the relay\r\n";

/// Faults that wait for a command of this name, and how many they are for. The relays of one client share them.
#[derive(Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Vec<(String, Fault, usize)>>>);

struct Shared {
    faults: Faults,
    is_cut: watch::Sender<bool>,
    /// Raised to close every connection that is open.
    generation: watch::Sender<u64>,
    is_refusing: AtomicBool,
    open: AtomicUsize,
}

#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Relay {
    pub(crate) async fn start(server: SocketAddr, faults: Faults) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            faults,
            is_cut: watch::channel(false).0,
            generation: watch::channel(0).0,
            is_refusing: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if accepting.is_refusing.load(Ordering::SeqCst) {
                    continue;
                }
                tokio::spawn(serve(near, server, Arc::clone(&accepting)));
            }
        });
        Relay { address, shared }
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.shared.is_cut.send_replace(is_cut);
    }

    pub(crate) fn disconnect(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }

    /// Closes everything, and takes nobody any more.
    pub(crate) fn crash(&self) {
        self.shared.is_refusing.store(true, Ordering::SeqCst);
        self.disconnect();
    }

    /// Takes connections again.
    pub(crate) fn heal(&self) {
        self.shared.is_refusing.store(false, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

async fn serve(near: TcpStream, server: SocketAddr, shared: Arc<Shared>) {
    let mut generation = shared.generation.subscribe();
    generation.mark_unchanged();
    let Ok(far) = TcpStream::connect(server).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    shared.open.fetch_add(1, Ordering::SeqCst);
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let expected = Arc::new(Mutex::new(VecDeque::new()));
    let near_out = Arc::new(tokio::sync::Mutex::new(near_out));
    tokio::select! {
        _ = requests(near_in, far_out, Arc::clone(&near_out), Arc::clone(&expected), &shared) => {}
        _ = replies(far_in, near_out, expected, &shared) => {}
        _ = generation.changed() => {}
    }
    shared.open.fetch_sub(1, Ordering::SeqCst);
}

async fn requests(
    mut near: OwnedReadHalf,
    mut far: OwnedWriteHalf,
    near_out: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    expected: Arc<Mutex<VecDeque<Expected>>>,
    shared: &Shared,
) -> Option<()> {
    let mut buffer = Vec::new();
    let mut is_cut = shared.is_cut.subscribe();
    loop {
        let mut chunk = [0; 16 * 1024];
        let len = near.read(&mut chunk).await.ok().filter(|len| *len > 0)?;
        buffer.extend_from_slice(&chunk[..len]);
        is_cut.wait_for(|is_cut| !is_cut).await.ok()?;
        while let Some(len) = frame(&buffer) {
            let command: Vec<u8> = buffer.drain(..len).collect();
            match shared.faults.meet(&name(&command)) {
                Some(Fault::Unavailable) => {
                    let is_next = {
                        let mut expected = expected.lock().unwrap();
                        expected.push_back(Expected::Own(UNAVAILABLE));
                        expected.len() == 1
                    };
                    if is_next {
                        expected.lock().unwrap().pop_front();
                        near_out.lock().await.write_all(UNAVAILABLE).await.ok()?;
                    }
                    continue;
                }
                Some(Fault::DropReply) => expected.lock().unwrap().push_back(Expected::Close),
                Some(Fault::Indeterminate) => {
                    expected.lock().unwrap().push_back(Expected::Replace(INDETERMINATE));
                }
                None => expected.lock().unwrap().push_back(Expected::Forward),
            }
            far.write_all(&command).await.ok()?;
        }
    }
}

async fn replies(
    mut far: OwnedReadHalf,
    near_out: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    expected: Arc<Mutex<VecDeque<Expected>>>,
    shared: &Shared,
) -> Option<()> {
    let mut buffer = Vec::new();
    let mut is_cut = shared.is_cut.subscribe();
    loop {
        let mut chunk = [0; 16 * 1024];
        let len = far.read(&mut chunk).await.ok().filter(|len| *len > 0)?;
        buffer.extend_from_slice(&chunk[..len]);
        is_cut.wait_for(|is_cut| !is_cut).await.ok()?;
        while let Some(len) = frame(&buffer) {
            let reply: Vec<u8> = buffer.drain(..len).collect();
            let mut out = Vec::new();
            if reply[0] == b'>' && !expected_is_subscription(&reply) {
                out.extend(reply);
            } else {
                let mut expected = expected.lock().unwrap();
                match expected.pop_front() {
                    Some(Expected::Close) => return None,
                    Some(Expected::Replace(bytes)) => out.extend_from_slice(bytes),
                    Some(Expected::Forward | Expected::Own(_)) | None => out.extend(reply),
                }
                while let Some(Expected::Own(bytes)) = expected.front() {
                    out.extend_from_slice(bytes);
                    expected.pop_front();
                }
            }
            near_out.lock().await.write_all(&out).await.ok()?;
        }
    }
}

/// The confirmation of a subscription is a push, and the answer to a command.
fn expected_is_subscription(push: &[u8]) -> bool {
    push.windows(9).take(24).any(|word| word == b"subscribe")
}

impl Faults {
    pub(crate) fn add(&self, command: &str, fault: Fault, count: usize) {
        self.0.lock().unwrap().push((command.to_ascii_uppercase(), fault, count));
    }

    /// The fault that this command meets, used up once.
    fn meet(&self, name: &str) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap();
        let at = faults.iter().position(|(command, _, _)| command == name)?;
        let fault = faults[at].1;
        faults[at].2 -= 1;
        if faults[at].2 == 0 {
            faults.remove(at);
        }
        Some(fault)
    }
}

/// The name of a command; that of a function is written as the command it stands for.
fn name(command: &[u8]) -> String {
    let mut words = command
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .skip(2)
        .step_by(2);
    let word = |word: Option<&[u8]>| String::from_utf8_lossy(word.unwrap_or_default()).to_ascii_uppercase();
    match word(words.next()).as_str() {
        "FCALL" => word(words.next()).replacen('_', ".", 1),
        name => name.to_owned(),
    }
}

/// The length of the first whole frame.
fn frame(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' | b'=' | b'!' => {
            let len = usize::try_from(number()?).map_or(end, |len| end + len + 2);
            (bytes.len() >= len).then_some(len)
        }
        kind @ (b'*' | b'>' | b'~' | b'%') => {
            let count = usize::try_from(number()?).unwrap_or(0) * if kind == b'%' { 2 } else { 1 };
            let mut len = end;
            for _ in 0..count {
                len += frame(&bytes[len..])?;
            }
            Some(len)
        }
        _ => Some(end),
    }
}
