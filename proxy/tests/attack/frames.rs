//! What attackers send: made from real handshakes and sessions, cut, changed and mixed up, and plain nonsense.

use crate::target::Target;
use rustls::pki_types::ServerName;
use rustls::ClientConnection;
use std::sync::Arc;

/// A small generator (xorshift64*): the same numbers in every run.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }
}

pub(crate) enum Source {
    Nonsense,
    /// Bytes that mean something at one of the ports, whole.
    Whole(&'static str, Vec<u8>),
    /// The same up to some byte.
    Cut(&'static str, Vec<u8>),
    /// The same with some bytes changed.
    Changed(&'static str, Vec<u8>),
}

const REPLAYED: &str = "replayed peer session";

/// Shows what it is made from.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Nonsense => f.write_str("nonsense"),
            Source::Whole(name, _) => f.write_str(name),
            Source::Cut(name, _) => write!(f, "{name}, cut"),
            Source::Changed(name, _) => write!(f, "{name}, changed"),
        }
    }
}

impl Source {
    pub(crate) fn all(target: &Target) -> Vec<Source> {
        let hello = client_hello(target);
        let mut known: Vec<(&'static str, Vec<u8>)> = vec![
            ("TLS client hello", hello.clone()),
            ("TLS 1.0 alone", old_hello(0x0301)),
            ("SSL 3 alone", old_hello(0x0300)),
            ("TLS 1.2 without extensions", old_hello(0x0303)),
            ("SSL 2 hello", b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80".repeat(2)),
            ("TLS alert", b"\x15\x03\x03\x00\x02\x02\x28".to_vec()),
            ("TLS record of the largest length", [&b"\x17\x03\x03\xff\xff"[..], &[7_u8; 2_000][..]].concat()),
            ("hello twice", [&hello[..], &hello].concat()),
            ("RESP", b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$6\r\nsecret\r\n".to_vec()),
            ("RESP of the largest counts", b"*2147483647\r\n$536870912\r\n".to_vec()),
            ("RESP login", b"*3\r\n$4\r\nAUTH\r\n$5\r\nadmin\r\n$5\r\nguess\r\n".to_vec()),
            ("inline", b"FLUSHALL\r\nSHUTDOWN\r\nLOCK.CLUSTER ADD 77 10.0.0.1:1\r\n".to_vec()),
            ("HTTP", b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n".to_vec()),
            ("peer greeting in clear", [&b"\x30\x00\x00\x00\x01RFPEER1\n"[..], &[0_u8; 64][..]].concat()),
            ("peer frame in clear", [&b"\x40\x00\x00\x00\x14\x00\x00"[..], &[1_u8; 61][..]].concat()),
            ("empty", Vec::new()),
        ];
        known.extend(target.recorded_sessions().into_iter().map(|bytes| (REPLAYED, bytes)));
        let mut sources = vec![Source::Nonsense];
        for (name, bytes) in known {
            sources.push(Source::Cut(name, bytes.clone()));
            sources.push(Source::Changed(name, bytes.clone()));
            sources.push(Source::Whole(name, bytes));
        }
        sources
    }

    pub(crate) fn is_replay(&self) -> bool {
        match self {
            Source::Nonsense => false,
            Source::Whole(name, _) | Source::Cut(name, _) | Source::Changed(name, _) => *name == REPLAYED,
        }
    }

    pub(crate) fn bytes(&self, rng: &mut Rng) -> Vec<u8> {
        match self {
            Source::Nonsense => {
                let length = rng.below(2_000);
                (0..length).map(|_| rng.next() as u8).collect()
            }
            Source::Whole(_, bytes) => bytes.clone(),
            Source::Cut(_, bytes) => bytes[..rng.below(bytes.len() + 1)].to_vec(),
            Source::Changed(_, bytes) => {
                let mut changed = bytes.clone();
                for _ in 0..1 + rng.below(4) {
                    let at = rng.below(changed.len());
                    if let Some(byte) = changed.get_mut(at) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
                changed
            }
        }
    }
}

/// The first flight of a real client.
fn client_hello(target: &Target) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::clone(&target.tls), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// A hello that offers one old version and one old cipher.
fn old_hello(version: u16) -> Vec<u8> {
    let version = version.to_be_bytes();
    let mut body = version.to_vec();
    body.extend_from_slice(&[0x5a; 32]);
    body.extend_from_slice(b"\x00\x00\x04\x00\x05\x00\x0a\x01\x00");
    let mut bytes = vec![0x16, version[0], version[1]];
    bytes.extend_from_slice(&(body.len() as u16 + 4).to_be_bytes());
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}
