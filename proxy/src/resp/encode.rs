//! Replies → bytes, in RESP2 and RESP3. The only place that writes protocol bytes of our own.
//!
//! Implements core's [`Sink`], so that every front gives the same answers; pushes (pub/sub) have functions of their own,
//! because RESP2 knows no pushes and sends them as arrays.

use redfence_core::keyspace::numbers::format_g;
use redfence_core::keyspace::Resp;
use redfence_core::reply::Sink;

/// The protocol a client speaks: RESP2 until it says `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Protocol {
    #[must_use]
    pub fn version(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

impl From<Protocol> for Resp {
    fn from(protocol: Protocol) -> Resp {
        match protocol {
            Protocol::Resp2 => Resp::Two,
            Protocol::Resp3 => Resp::Three,
        }
    }
}

/// Writes replies to the end of a buffer.
pub struct Encoder<'a> {
    pub out: &'a mut Vec<u8>,
    pub protocol: Protocol,
}

impl Encoder<'_> {
    /// The header of a push with `len` elements: an array in RESP2.
    pub fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', len),
            Protocol::Resp3 => self.header(b'>', len),
        }
    }

    fn header(&mut self, kind: u8, len: usize) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        // A line ends at the first CR or LF: one inside the text would let it forge a reply.
        self.out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.out.extend_from_slice(b"\r\n");
    }
}

impl Sink for Encoder<'_> {
    fn nil(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.out.extend_from_slice(b"$-1\r\n"),
            Protocol::Resp3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    fn nil_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.out.extend_from_slice(b"*-1\r\n"),
            Protocol::Resp3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    fn int(&mut self, value: i64) {
        self.out.push(b':');
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn double(&mut self, value: f64) {
        // As Redis 7.0 prints it.
        let text = format_g(value, 17);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp2 => self.int(i64::from(value)),
            Protocol::Resp3 => self.out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    fn bulk(&mut self, value: &[u8]) {
        self.header(b'$', value.len());
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    fn status(&mut self, value: &str) {
        self.line(b'+', value.as_bytes());
    }

    fn error(&mut self, line: &str) {
        self.line(b'-', line.as_bytes());
    }

    fn verbatim(&mut self, value: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(value),
            Protocol::Resp3 => {
                self.header(b'=', value.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(value);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', pairs * 2),
            Protocol::Resp3 => self.header(b'%', pairs),
        }
    }

    fn set(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', len),
            Protocol::Resp3 => self.header(b'~', len),
        }
    }
}

/// A command as a client would send it, for the upstream Redis.
pub fn command(out: &mut Vec<u8>, words: &[impl AsRef<[u8]>]) {
    let mut encoder = Encoder { out, protocol: Protocol::Resp2 };
    encoder.array(words.len());
    for word in words {
        encoder.bulk(word.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::reply::{Refusal, Reply};
    use redfence_core::types::{Fence, Reason};

    fn both(reply: &Reply) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = Vec::new();
            reply.render(&mut Encoder { out: &mut out, protocol });
            String::from_utf8(out).unwrap()
        })
    }

    #[test]
    fn replies_look_as_the_contract_says() {
        let granted = Reply::Granted { fence: Fence(42), ttl_ms: 1000 };
        assert_eq!(both(&granted), ["*2\r\n:42\r\n:1000\r\n"; 2]);
        assert_eq!(both(&Reply::Refused(Reason::Expired)), ["*2\r\n:0\r\n$7\r\nexpired\r\n"; 2]);
        assert_eq!(both(&Reply::Nil), ["$-1\r\n", "_\r\n"]);
        assert_eq!(both(&Reply::NilArray), ["*-1\r\n", "_\r\n"]);
        let map = Reply::Map(vec![(Reply::Text("a"), Reply::Int(1))]);
        assert_eq!(both(&map), ["*2\r\n$1\r\na\r\n:1\r\n", "%1\r\n$1\r\na\r\n:1\r\n"]);
        assert_eq!(both(&Reply::Double(1.5)), ["$3\r\n1.5\r\n", ",1.5\r\n"]);
        assert_eq!(both(&Reply::Double(0.1))[1], ",0.10000000000000001\r\n");
        assert_eq!(both(&Reply::Double(f64::NEG_INFINITY))[1], ",-inf\r\n");
        assert_eq!(both(&Reply::Verbatim("hi".into())), ["$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"]);
        assert_eq!(both(&Reply::Bool(true)), [":1\r\n", "#t\r\n"]);
    }

    #[test]
    fn an_error_cannot_forge_a_second_reply() {
        let error = Reply::Error(Refusal::new("ERR bad 'x\r\n+OK'"));
        assert_eq!(both(&error), ["-ERR bad 'x  +OK'\r\n"; 2]);
    }
}
