//! An exact RESP2 and RESP3 client: values that keep every difference the wire makes, and a blocking connection.
//!
//! It exists because client libraries smooth over what conformance must see: `$-1` from `*-1`, a map from a
//! flat array, a bulk string from a simple one. It does no reconnecting and no retrying. Used by every test
//! that talks to a socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// No reply of ours nests deeper; a server that sends more is broken.
const NESTING_MAX: usize = 16;
/// A single reply larger than this is taken for garbage.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
const CHUNK_BYTES: usize = 16 * 1024;
/// Read at a time where a reply is large.
const LARGE_STEP_BYTES: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Resp2,
    Resp3,
}

impl Protocol {
    pub const BOTH: [Protocol; 2] = [Protocol::Resp2, Protocol::Resp3];

    pub fn name(self) -> &'static str {
        match self {
            Protocol::Resp2 => "resp2",
            Protocol::Resp3 => "resp3",
        }
    }

    /// The one nil of `LOCK.*` and `FENCE.*`: `$-1` in RESP2, `_` in RESP3.
    pub fn nil(self) -> Value {
        match self {
            Protocol::Resp2 => Value::NullBulk,
            Protocol::Resp3 => Value::Null,
        }
    }
}

/// One reply, typed as it was on the wire.
#[derive(Clone, PartialEq)]
pub enum Value {
    Simple(Vec<u8>),
    /// The whole line after `-` (or the blob after `!`): code, blank, text.
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    /// `$-1`
    NullBulk,
    /// `*-1`
    NullArray,
    /// `_` of RESP3
    Null,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Push(Vec<Value>),
    Boolean(bool),
    /// Kept as the text sent, so that it compares exactly.
    Double(String),
    BigNumber(String),
    Verbatim(Vec<u8>),
}

impl Value {
    pub fn bulk(text: impl AsRef<[u8]>) -> Value {
        Value::Bulk(text.as_ref().to_vec())
    }

    pub fn array(&self) -> &[Value] {
        match self {
            Value::Array(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    pub fn integer(&self) -> i64 {
        match self {
            Value::Integer(number) => *number,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    /// The bytes of a bulk string, and of nothing else.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Value::Bulk(bytes) => bytes,
            other => panic!("expected a bulk string, got {other:?}"),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Value::Error(_))
    }

    /// The first word of an error.
    pub fn error_code(&self) -> &str {
        match self {
            Value::Error(line) => line.split(' ').next().unwrap_or(""),
            other => panic!("expected an error, got {other:?}"),
        }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Simple(bytes) => write!(out, "+{}", bytes.escape_ascii()),
            Value::Error(line) => write!(out, "-{line}"),
            Value::Integer(number) => write!(out, ":{number}"),
            Value::Bulk(bytes) => write!(out, "\"{}\"", bytes.escape_ascii()),
            Value::NullBulk => write!(out, "$-1"),
            Value::NullArray => write!(out, "*-1"),
            Value::Null => write!(out, "_"),
            Value::Array(items) => out.debug_list().entries(items).finish(),
            Value::Map(pairs) => {
                write!(out, "%")?;
                out.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish()
            }
            Value::Set(items) => {
                write!(out, "~")?;
                out.debug_list().entries(items).finish()
            }
            Value::Push(items) => {
                write!(out, ">")?;
                out.debug_list().entries(items).finish()
            }
            Value::Boolean(flag) => write!(out, "#{flag}"),
            Value::Double(text) => write!(out, ",{text}"),
            Value::BigNumber(text) => write!(out, "({text}"),
            Value::Verbatim(bytes) => write!(out, "={}", bytes.escape_ascii()),
        }
    }
}

/// Why no value came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    TimedOut,
    /// The other side closed, or reset, the connection.
    Closed,
    /// The bytes are no RESP: the text says what was seen.
    Garbage(String),
}

/// What the first bytes of a buffer hold: a value and its length, or nothing complete yet.
pub fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, String> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.value(0) {
        Ok(value) => Ok(Some((value, reader.at))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Garbage(text)) => Err(text),
    }
}

enum Stop {
    Incomplete,
    Garbage(String),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        if depth > NESTING_MAX {
            return Err(Stop::Garbage(format!("a reply nested deeper than {NESTING_MAX}")));
        }
        let line = self.line()?;
        let Some((&kind, rest)) = line.split_first() else {
            return Err(Stop::Garbage("an empty line in place of a reply".into()));
        };
        match kind {
            b'+' => Ok(Value::Simple(rest.to_vec())),
            b'-' => Ok(Value::Error(String::from_utf8_lossy(rest).into_owned())),
            b':' => Ok(Value::Integer(number(rest)?)),
            b'$' => match number(rest)? {
                -1 => Ok(Value::NullBulk),
                length => Ok(Value::Bulk(self.blob(length)?)),
            },
            b'=' => {
                let length = number(rest)?;
                Ok(Value::Verbatim(self.blob(length)?))
            }
            b'!' => {
                let length = number(rest)?;
                Ok(Value::Error(String::from_utf8_lossy(&self.blob(length)?).into_owned()))
            }
            b'*' => match number(rest)? {
                -1 => Ok(Value::NullArray),
                count => Ok(Value::Array(self.items(count, depth)?)),
            },
            b'~' => Ok(Value::Set(self.items(number(rest)?, depth)?)),
            b'>' => Ok(Value::Push(self.items(number(rest)?, depth)?)),
            b'%' => {
                let count = number(rest)?;
                let mut pairs = Vec::new();
                for _ in 0..count {
                    pairs.push((self.value(depth + 1)?, self.value(depth + 1)?));
                }
                Ok(Value::Map(pairs))
            }
            b'_' if rest.is_empty() => Ok(Value::Null),
            b'#' if rest == b"t" => Ok(Value::Boolean(true)),
            b'#' if rest == b"f" => Ok(Value::Boolean(false)),
            b',' => Ok(Value::Double(String::from_utf8_lossy(rest).into_owned())),
            b'(' => Ok(Value::BigNumber(String::from_utf8_lossy(rest).into_owned())),
            _ => Err(Stop::Garbage(format!("no reply starts with '{}'", line.escape_ascii()))),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(Stop::Incomplete)?;
        self.at += end + 2;
        Ok(&rest[..end])
    }

    fn blob(&mut self, length: i64) -> Result<Vec<u8>, Stop> {
        let length = usize::try_from(length).map_err(|_| Stop::Garbage(format!("length {length}")))?;
        if length > REPLY_BYTES_MAX {
            return Err(Stop::Garbage(format!("a reply of {length} bytes")));
        }
        let rest = &self.bytes[self.at..];
        if rest.len() < length + 2 {
            return Err(Stop::Incomplete);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(Stop::Garbage("a bulk string that does not end where it says".into()));
        }
        self.at += length + 2;
        Ok(rest[..length].to_vec())
    }

    fn items(&mut self, count: i64, depth: usize) -> Result<Vec<Value>, Stop> {
        if count < 0 {
            return Err(Stop::Garbage(format!("an aggregate of {count} items")));
        }
        (0..count).map(|_| self.value(depth + 1)).collect()
    }
}

fn number(text: &[u8]) -> Result<i64, Stop> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Stop::Garbage(format!("'{}' is no number", text.escape_ascii())))
}

/// A command as the wire wants it: an array of bulk strings.
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// One TCP connection that speaks RESP.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Connection { stream, buffer: Vec::new() })
    }

    /// Opens and agrees on the protocol; RESP2 needs no greeting.
    pub fn open_with(address: SocketAddr, protocol: Protocol) -> Result<Connection, String> {
        let mut connection =
            Connection::open(address).map_err(|error| format!("cannot connect to {address}: {error}"))?;
        if protocol == Protocol::Resp3 {
            match connection.ask(&["HELLO", "3"], CONNECT_TIMEOUT) {
                Ok(Value::Map(_)) => {}
                other => return Err(format!("HELLO 3 at {address} answered {other:?}")),
            }
        }
        Ok(connection)
    }

    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> std::io::Result<()> {
        self.send_raw(&encode(args))
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next value, or why there is none within `timeout`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Value, ReceiveError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some((value, used)) = parse(&self.buffer).map_err(ReceiveError::Garbage)? {
                self.buffer.drain(..used);
                return Ok(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ReceiveError::TimedOut);
            }
            self.fill(left)?;
        }
    }

    /// Whether a value has come that was not received yet. Looks, and waits a millisecond at most.
    pub fn has_value(&mut self) -> bool {
        let whole = |buffer: &[u8]| matches!(parse(buffer), Ok(Some(_)));
        // Closed or silent: either way there is nothing more to see.
        let _ = if whole(&self.buffer) { Ok(()) } else { self.fill(Duration::from_millis(1)) };
        whole(&self.buffer)
    }

    fn fill(&mut self, timeout: Duration) -> Result<(), ReceiveError> {
        let mut length = self.fill_once(timeout)?;
        // A full chunk: most likely a large reply, of which more is there. It is parsed from its start each time, so it is
        // taken in few steps.
        let enough = self.buffer.len() + LARGE_STEP_BYTES;
        while length == CHUNK_BYTES && self.buffer.len() < enough {
            length = match self.fill_once(Duration::from_millis(1)) {
                Err(ReceiveError::TimedOut) => return Ok(()),
                filled => filled?,
            };
        }
        Ok(())
    }

    fn fill_once(&mut self, timeout: Duration) -> Result<usize, ReceiveError> {
        // A time-out of zero would mean "for ever" to the socket.
        let timeout = timeout.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(timeout)).map_err(|_| ReceiveError::Closed)?;
        let mut chunk = [0u8; CHUNK_BYTES];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ReceiveError::Closed),
            Ok(length) => {
                self.buffer.extend_from_slice(&chunk[..length]);
                Ok(length)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(ReceiveError::TimedOut),
                ErrorKind::Interrupted => Ok(0),
                _ => Err(ReceiveError::Closed),
            },
        }
    }

    pub fn ask<A: AsRef<[u8]>>(&mut self, args: &[A], timeout: Duration) -> Result<Value, ReceiveError> {
        self.send(args).map_err(|_| ReceiveError::Closed)?;
        self.receive(timeout)
    }

    /// A handle that another thread may close this connection by.
    pub fn closer(&self) -> Closer {
        Closer(self.stream.try_clone().expect("a second handle of a socket"))
    }
}

/// Closes a connection without a word, as a client that died does.
pub struct Closer(TcpStream);

impl Closer {
    pub fn close(&self) {
        // The other side may have closed first; there is nothing left to do then.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Value {
        let (value, used) = parse(text.as_bytes()).unwrap().expect("complete");
        assert_eq!(used, text.len());
        value
    }

    #[test]
    fn every_nil_is_told_apart() {
        assert_eq!(parsed("$-1\r\n"), Value::NullBulk);
        assert_eq!(parsed("*-1\r\n"), Value::NullArray);
        assert_eq!(parsed("_\r\n"), Value::Null);
        assert_ne!(parsed("$-1\r\n"), parsed("*-1\r\n"));
    }

    #[test]
    fn map_is_no_array_and_bulk_is_no_simple() {
        assert_eq!(
            parsed("%1\r\n+a\r\n:1\r\n"),
            Value::Map(vec![(Value::Simple(b"a".to_vec()), Value::Integer(1))])
        );
        assert_ne!(parsed("$2\r\nok\r\n"), parsed("+ok\r\n"));
        assert_eq!(parsed("-ERR no\r\n").error_code(), "ERR");
        assert_eq!(parsed(">1\r\n#t\r\n"), Value::Push(vec![Value::Boolean(true)]));
    }

    #[test]
    fn a_value_cut_anywhere_is_incomplete() {
        let whole = b"*2\r\n:7\r\n$5\r\nab\r\nc\r\n";
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut]).unwrap().is_none(), "cut at {cut}");
        }
        assert!(parse(whole).unwrap().is_some());
    }

    #[test]
    fn garbage_is_named() {
        assert!(parse(b"hello\r\n").is_err());
        assert!(parse(b"$x\r\n").is_err());
        assert!(parse(b"$2\r\nabcd").is_err());
    }
}
